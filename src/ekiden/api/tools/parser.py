"""Finds tool calls in the text of an answer while it grows.

Rules:
- what is given out never depends on how the text was cut into pieces, so a streamed answer equals a whole one;
- a call to a function that was not offered, and what only looks like a call, is text;
- white space around calls belongs to the format and is not text;
- an answer without calls keeps its text to the last character, unless calls were all that it could hold;
- a call that was cut before its name was known is left out where another came before it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ekiden.api.tools.formats import ToolFormat
from ekiden.api.tools.scanner import CallScanner, ValueScanner

_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments' JSON text."""

    index: int
    text: str


Event = Text | CallBegin | CallArguments


class ToolParser:
    """One answer's text. ``num_calls`` counts the calls that have begun.

    ``forced``: a grammar lets nothing but calls come.
    """

    opening: str
    closing = ""
    separators = ""
    """What may stand between two calls, beside white space."""

    def __init__(self, names: frozenset[str], new_id: Callable[[], str], *, forced: bool = False) -> None:
        self._names = names
        self._forced = forced
        self._new_id = new_id
        self._buffer = ""
        self._events: list[Event] = []
        self._space = ""
        self._gap = ""
        self._said = False
        self._said_since_call = True
        self._scanner = CallScanner()
        self._raw = ""
        self._begun = False
        self._value = ValueScanner()
        self._state: Callable[[], bool] = self._start
        self.num_calls = 0

    def feed(self, text: str) -> list[Event]:
        self._buffer += text
        while self._buffer and self._state():
            pass
        return self._taken()

    def finish(self) -> list[Event]:
        """The events of the text that was held back; no text follows."""
        held, rest = self._buffer, self._raw + self._buffer
        self._buffer = ""
        if not self._begun:
            marker = self.closing if self._state == self._after else self.opening
            cut = bool(self._raw) or marker.startswith(held.strip(_SPACE + self.separators))
            if not (cut and (self._forced or self.num_calls)):
                self._say(rest)
            if self._space and (self._said_since_call or self.num_calls == 0):
                self._emit_text(self._space)
        return self._taken()

    def _start(self) -> bool:
        return self._text()

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _say(self, text: str) -> None:
        """Emit text, but hold back trailing white space until it is known whether a call follows."""
        if not self._said_since_call:
            text = text.lstrip()
            if not text:
                return
            text, self._gap = self._gap + text, ""
        text = self._space + text
        said = text.rstrip()
        self._space = text[len(said) :]
        if said:
            self._said = self._said_since_call = True
            self._emit_text(said)

    def _emit_text(self, text: str) -> None:
        if self._events and isinstance(self._events[-1], Text):
            self._events[-1] = Text(self._events[-1].text + text)
        else:
            self._events.append(Text(text))

    def _text(self) -> bool:
        """Ordinary text, up to the marker that opens a call."""
        at = self._buffer.find(self.opening)
        if at < 0:
            keep = _overlap(self._buffer, self.opening)
            self._say(self._buffer[: len(self._buffer) - keep])
            self._buffer = self._buffer[len(self._buffer) - keep :]
            return False
        self._say(self._buffer[:at])
        self._buffer = self._buffer[at + len(self.opening) :]
        self._opened()
        return True

    def _opened(self) -> None:
        self._begin_object(self.opening)

    def _begin_object(self, raw: str) -> None:
        self._scanner, self._raw, self._begun = CallScanner(), raw, False
        self._state = self._object

    def _object(self) -> bool:
        """Inside a call's object."""
        scanner = self._scanner
        taken = scanner.feed(self._buffer)
        self._raw += self._buffer[:taken]
        self._buffer = self._buffer[taken:]
        if not self._begun and scanner.name is not None and scanner.name in self._names:
            self._begin_call(scanner.name)
        lost = scanner.failed or scanner.done or (scanner.name is not None and scanner.name not in self._names)
        if not self._begun and lost:
            self._give_back()
            return True
        if self._begun:
            self._argue(scanner.take())
        if scanner.done or scanner.failed:
            self._end_call()
        return True

    def _begin_call(self, name: str) -> None:
        if self._said_since_call and self._said:
            self._gap = self._space  # it separates the text before the calls from any text after them
        self._space = ""
        self._begun = True
        self._events.append(CallBegin(self.num_calls, self._new_id(), name))
        self.num_calls += 1

    def _argue(self, text: str) -> None:
        if text:
            self._events.append(CallArguments(self.num_calls - 1, text))

    def _end_call(self) -> None:
        self._begun, self._raw = False, ""
        self._said_since_call = False
        self._state = self._after

    def _give_back(self) -> None:
        """It was no call: what was read of it is text."""
        raw, self._raw = self._raw, ""
        self._state = self._text
        self._say(raw)

    def _after(self) -> bool:
        """After a call: its closing marker, where the format has one."""
        rest = self._buffer.lstrip()
        if self.closing and rest.startswith(self.closing):
            self._buffer = rest[len(self.closing) :]
        elif self.closing.startswith(rest):
            return False
        self._state = self._text
        return True


class HermesParser(ToolParser):
    opening = ToolFormat.HERMES.value.opening
    closing = ToolFormat.HERMES.value.closing


class Llama3Parser(ToolParser):
    """Calls are the whole answer: text that does not begin with one has none."""

    opening = ToolFormat.LLAMA3.value.opening
    separators = ";,"

    def _start(self) -> bool:
        return self._maybe("")

    def _after(self) -> bool:
        return self._maybe(self.separators)

    def _maybe(self, skipped: str) -> bool:
        """A call begins here, or the rest is text."""
        rest = self._buffer.lstrip().lstrip(skipped).lstrip() if skipped else self._buffer.lstrip()
        tag = rest.startswith(self.opening)
        if tag or rest.startswith("{"):
            before = self._buffer[: len(self._buffer) - len(rest)]
            self._buffer = rest[len(self.opening) :] if tag else rest
            self._begin_object("" if skipped else before)
            return True
        if self.opening.startswith(rest):
            return False
        self._state = self._text
        return True

    def _text(self) -> bool:
        self._say(self._buffer)
        self._buffer = ""
        return False


class MistralParser(ToolParser):
    """``[TOOL_CALLS]`` opens a list of objects, or names a function whose arguments follow."""

    opening = ToolFormat.MISTRAL.value.opening

    def _opened(self) -> None:
        self._raw, self._begun = self.opening, False
        self._state = self._list_or_name

    def _list_or_name(self) -> bool:
        rest = self._buffer.lstrip()
        if not rest:
            return False
        if rest.startswith("["):
            self._buffer = rest[1:]
            self._begin_object(self._raw + "[")
        else:
            self._buffer = rest
            self._state = self._name
        return True

    def _after(self) -> bool:
        """Between the objects of a list, and after it."""
        rest = self._buffer.lstrip()
        if not rest:
            return False
        if rest.startswith(","):
            self._buffer = rest[1:]
            self._begin_object("")
            return True
        self._buffer = rest.removeprefix("]")
        self._state = self._text
        return True

    def _name(self) -> bool:
        """``name{...}``, ``name[ARGS]{...}`` or ``name[CALL_ID]id[ARGS]{...}``."""
        at = self._buffer.find("{")
        if at < 0:
            return False
        head = self._buffer[:at]
        name = head.split("[")[0].strip()
        if name not in self._names:
            self._raw += head
            self._buffer = self._buffer[at:]
            self._give_back()
            return True
        self._begin_call(name)
        self._buffer = self._buffer[at:]
        self._value = ValueScanner()
        self._state = self._arguments
        return True

    def _arguments(self) -> bool:
        for index, character in enumerate(self._buffer):
            if self._value.feed(character):
                self._argue(self._buffer[: index + 1])
                self._buffer = self._buffer[index + 1 :]
                self._end_call()
                self._state = self._text
                return True
        self._argue(self._buffer)
        self._buffer = ""
        return False


def _overlap(text: str, marker: str) -> int:
    """How long an end of ``text`` is that ``marker`` begins with."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0


PARSERS: dict[ToolFormat, type[ToolParser]] = {
    ToolFormat.HERMES: HermesParser,
    ToolFormat.LLAMA3: Llama3Parser,
    ToolFormat.MISTRAL: MistralParser,
}
