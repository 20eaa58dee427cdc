"""Turns generated tokens into text piece by piece and finds stop strings in it, for the engine and the HTTP API.

Rules:

1. No character of a stop string is given out. Characters that may become part of one are held back, and given out
   once it is known that they do not.
2. When one token completes several stop strings, the one that begins first counts; of those that begin together, the
   shortest.
3. A stop string that ends within the text of the first ``min_tokens`` tokens does not count. One that begins there and
   ends later does.
4. The work for a token follows its own length and that of the stop strings, not the text's: only the held-back
   characters, fewer than the longest stop string has, are searched again.
5. The pieces together are ``decode(ids, continuation=True)``. The bytes of an unfinished character (at most three) are
   held back.
6. Reasoning before an answer is given out apart. Stop strings are looked for in the answer alone.
"""

import codecs
from typing import NamedTuple

from ekiden.models.thinking import Place, ThinkingSplitter
from ekiden.models.tokenizer import Tokenizer
from ekiden.state.sampling_params import Thinking


class TextDelta(NamedTuple):
    """``text`` may be sent now; ``stopped`` is the stop string that ended the text, if one did. ``reasoning`` is what
    the model thought before it answered."""

    text: str
    stopped: str | None = None
    reasoning: str = ""


class IncrementalText:
    """The text of one sequence.

    Args:
        tokenizer: turns ids into text.
        stop: the stop strings, none empty.
        include_stop: the text ends with the stop string instead of before it.
        min_tokens: stop strings that end in the text of this many first tokens do not count.
        skip_special_tokens: leave special tokens out of the text.
        shown: special tokens that stay in the text all the same.
        thinking: the marks of reasoning that may come before the answer.

    Raises:
        ValueError: a stop string is empty and would match everywhere.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        *,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
        thinking: Thinking | None = None,
    ) -> None:
        if "" in stop:
            raise ValueError("stop holds an empty string; leave it out, or give a text of at least one character")
        self._tokenizer = tokenizer
        if thinking is not None:
            marks = (tokenizer.token_to_id(mark) for mark in (thinking.opening, thinking.closing))
            shown |= {mark for mark in marks if mark is not None}
        self._newest = ""
        self._splitter = None if thinking is None else ThinkingSplitter(thinking)
        self.skipped = tokenizer.special_ids - shown if skip_special_tokens else frozenset[int]()
        """Tokens that are no part of the text."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = stop
        self._beginnings = frozenset(text[0] for text in stop)
        self._include_stop = include_stop
        self._tokens_without_stop = min_tokens
        self._held = ""
        self._stopped: str | None = None

    def feed(self, token_id: int) -> TextDelta:
        """The text that may be sent after the next token; none once a stop string was found."""
        may_stop = self._tokens_without_stop == 0
        self._tokens_without_stop -= not may_stop
        data = b"" if token_id in self.skipped else self._tokenizer.token_bytes(token_id)
        text = self._decoder.decode(data)
        if self._splitter is None:
            return self._add(text, may_stop)
        reasoning, self._newest = self._splitter.feed(text)
        return self._add(self._newest, may_stop)._replace(reasoning=reasoning)

    @property
    def place(self) -> Place:
        """Where the newest token belongs, as far as is known."""
        if self._splitter is None:
            return Place.ANSWER
        place = self._splitter.place
        # An unfinished character, which is no line end, begins the answer.
        return Place.ANSWER if place is Place.BEHIND and self._decoder.getstate()[0] else place

    @property
    def newest(self) -> bytes:
        """What the newest token added to an answer that reasoning may precede."""
        return self._newest.encode() + self._decoder.getstate()[0]

    def finish(self) -> str:
        """The text that was held back, when generation ends another way; an unfinished character is U+FFFD."""
        return self.rest().text

    def rest(self) -> TextDelta:
        """As :meth:`finish`, with the reasoning that was held back."""
        rest, reasoning = self._decoder.decode(b"", final=True), ""
        if self._splitter is not None:
            thought, text = self._splitter.feed(rest)
            held_thought, held_text = self._splitter.finish()
            reasoning, rest = thought + held_thought, text + held_text
        delta = self._add(rest, self._tokens_without_stop == 0)
        if self._stopped is None:
            delta, self._held = TextDelta(delta.text + self._held), ""
        return delta._replace(reasoning=reasoning)

    def _add(self, text: str, may_stop: bool) -> TextDelta:
        """Add text, in which stop strings may begin but not end unless ``may_stop``."""
        if self._stopped is not None:
            return TextDelta(text="", stopped=self._stopped)
        if not self._held and self._beginnings.isdisjoint(text):
            return TextDelta(text)  # the usual case: no stop string can begin here
        held, pending = len(self._held), self._held + text
        # A match that ends in the held-back text was complete with an earlier token, and was passed over then.
        begins = [(pending.find(stop, max(0, held + 1 - len(stop))), len(stop), stop) for stop in self._stop]
        if may_stop and (found := [each for each in begins if each[0] >= 0]):
            begin, length, self._stopped = min(found)
            self._held = ""
            return TextDelta(text=pending[: begin + length if self._include_stop else begin], stopped=self._stopped)
        keep = len(pending) - max((_begun(pending, stop) for stop in self._stop), default=0)
        self._held = pending[keep:]
        return TextDelta(text=pending[:keep])


def _begun(text: str, stop: str) -> int:
    """The length of the longest proper beginning of ``stop`` with which ``text`` ends."""
    longest = min(len(stop) - 1, len(text))
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
