"""Finds tool calls in the text of an answer while it grows.

Rules:
- what is given out never depends on how the text was cut into pieces, so a streamed answer equals a whole one;
- a call is given out when it is whole, with arguments that are a JSON object; where a grammar sees to that, as it is
  written, and then it may be cut;
- a call to a function that was not offered, one that is cut or malformed, and what only looks like a call, is text;
- white space around calls belongs to the format and is not text;
- an answer without calls keeps its text to the last character, unless calls were all that it could hold;
- the beginning of a marker is left out at the end of an answer that holds a call.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from ekiden.api.tools.formats import ToolFormat
from ekiden.api.tools.scanner import CallScanner, ValueScanner, whole_object

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


T = TypeVar("T")
Reader = Generator[None, None, T]
"""Reads the buffer and yields when it needs more text."""


class ToolParser(ABC):
    """One answer's text. ``num_calls`` counts the calls that have begun.

    ``live``: a grammar makes every call whole unless it is cut, so that calls are given out as they are written.
    ``forced``: it lets nothing but calls come.
    """

    opening: str
    closing = ""
    separators = ""
    """What may stand between two calls, beside white space."""

    def __init__(
        self, names: frozenset[str], new_id: Callable[[], str], *, live: bool = False, forced: bool = False
    ) -> None:
        self._names = names
        self._live = live
        self._forced = forced
        self._new_id = new_id
        self._buffer = ""
        self._events: list[Event] = []
        self._space = ""
        self._gap = ""
        self._said = False
        self._said_since_call = True
        self._raw = ""
        self._scanner: CallScanner | None = None
        self._begun = False
        self._awaited = self.opening
        self._reader = self._read()
        self.num_calls = 0

    @abstractmethod
    def _read(self) -> Reader[None]:
        """Reads the whole answer; it never ends."""

    def feed(self, text: str) -> list[Event]:
        self._buffer += text
        next(self._reader)
        return self._taken()

    @property
    def cut(self) -> bool:
        """Whether a call is not complete that was given out as it was written."""
        return self._begun

    def finish(self) -> list[Event]:
        """The events of the text that was held back; no text follows."""
        held, rest = self._buffer, self._raw + self._buffer
        self._buffer = ""
        if not (self._begun or self._complete_call()):
            marker = not self._raw and self._awaited.startswith(held.strip(_SPACE + self.separators))
            if not (self._forced and (marker or self._raw)) and not (marker and self.num_calls):
                self._say(rest)
            if self._space and (self._said_since_call or self.num_calls == 0):
                self._emit_text(self._space)
        return self._taken()

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _take(self, length: int) -> str:
        """Take text from the buffer's beginning."""
        taken, self._buffer = self._buffer[:length], self._buffer[length:]
        return taken

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

    def _text(self) -> Reader[None]:
        """Ordinary text, and the marker that opens a call."""
        self._awaited = self.opening
        while (at := self._buffer.find(self.opening)) < 0:
            self._say(self._take(len(self._buffer) - _overlap(self._buffer, self.opening)))
            yield
        self._say(self._take(at))
        self._take(len(self.opening))

    def _object(self, raw: str) -> Reader[bool]:
        """A call's object, after the text ``raw`` that opened it; False when it was no call and is text."""
        scanner = self._scanner = CallScanner()
        self._raw = raw
        while True:
            while not self._buffer:
                yield
            self._raw += self._take(scanner.feed(self._buffer))
            ended, offered = scanner.failed or scanner.done, scanner.name in self._names
            if self._live and offered and not self._begun:
                self._begin_call(scanner.name or "")
            if self._begun:
                self._argue(scanner.take())
                if ended:
                    self._end_call()
                    return True
            elif ended and self._complete_call():
                return True
            elif ended or not (offered or scanner.name is None):
                self._give_back()
                return False

    def _complete_call(self) -> bool:
        """Give out the call that was read, if it is whole. The bracket that ends it may be missing."""
        scanner = self._scanner
        if scanner is None or scanner.name not in self._names or (arguments := scanner.whole()) is None:
            return False
        self._give_call(scanner.name or "", arguments)
        return True

    def _give_call(self, name: str, arguments: str) -> None:
        self._begin_call(name)
        self._argue(arguments)
        self._end_call()

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
        self._begun, self._raw, self._scanner = False, "", None
        self._said_since_call = False
        self._awaited = self.closing

    def _give_back(self) -> None:
        """It was no call: what was read of it is text."""
        raw, self._raw, self._scanner = self._raw, "", None
        self._say(raw)


class HermesParser(ToolParser):
    opening = ToolFormat.HERMES.value.opening
    closing = ToolFormat.HERMES.value.closing

    def _read(self) -> Reader[None]:
        while True:
            yield from self._text()
            if (yield from self._object(self.opening)):
                while (rest := self._buffer.lstrip()) != self.closing and self.closing.startswith(rest):
                    yield
                if rest.startswith(self.closing):
                    self._buffer = rest[len(self.closing) :]


class Llama3Parser(ToolParser):
    """Calls are the whole answer: text that does not begin with one has none."""

    opening = ToolFormat.LLAMA3.value.opening
    separators = ";,"

    def _read(self) -> Reader[None]:
        between = ""
        while True:
            rest = self._buffer.lstrip().lstrip(between).lstrip()
            if rest.startswith((self.opening, "{")):
                before = self._buffer[: len(self._buffer) - len(rest)]
                self._buffer = rest.removeprefix(self.opening)
                if not (yield from self._object(before)):
                    break
                between = self.separators
            elif self.opening.startswith(rest):
                yield
            else:
                break
        while True:
            self._say(self._take(len(self._buffer)))
            yield


class MistralParser(ToolParser):
    """``[TOOL_CALLS]`` opens a list of objects, or names a function whose arguments follow."""

    opening = ToolFormat.MISTRAL.value.opening

    def _read(self) -> Reader[None]:
        while True:
            yield from self._text()
            self._raw = self.opening
            if (yield from self._next()) != "[":
                yield from self._named()
                continue
            raw = self._raw + self._take(1)
            while (yield from self._object(raw)):
                if (after := (yield from self._next())) in ",]":
                    self._raw += self._take(1)
                raw, self._raw = self._raw, ""
                if after != ",":
                    if after != "]":
                        self._say(raw)
                    break

    def _next(self) -> Reader[str]:
        """The next character that is not white space; it stays in the buffer."""
        while not (rest := self._buffer.lstrip()):
            yield
        self._raw += self._take(len(self._buffer) - len(rest))
        return rest[0]

    def _named(self) -> Reader[None]:
        """``name{...}``, ``name[ARGS]{...}`` or ``name[CALL_ID]id[ARGS]{...}``."""
        while (at := self._buffer.find("{")) < 0:
            yield
        head = self._take(at)
        self._raw += head
        name = head.split("[")[0].strip()
        if name not in self._names:
            self._give_back()
            return
        if self._live:
            self._begin_call(name)
        value = ValueScanner()
        while True:
            end = next((index + 1 for index, character in enumerate(self._buffer) if value.feed(character)), 0)
            text = self._take(end or len(self._buffer))
            self._raw += text
            if self._live:
                self._argue(text)
            if end:
                break
            yield
        if self._live:
            self._end_call()
        elif (arguments := whole_object(value.text)) is not None:
            self._give_call(name, arguments)
        else:
            self._give_back()


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
