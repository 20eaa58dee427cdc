"""Generated text, piece by piece, with stop strings held back: the engine and the doors share these rules.

1. No character of a stop string is given out, nor any that may yet become part of one; what turns out not to be is
   given out later.
2. When several stops are complete after the same token, the one that begins first wins, and of those that begin
   together the shortest.
3. A stop that is complete within the text of the first ``min_tokens`` tokens is none; one that only begins there is.
4. Matching is Knuth-Morris-Pratt over characters, so a token costs its length and never the length of the text.
"""

from dataclasses import dataclass

from ekiden.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """``text`` may be sent now; ``stopped`` is the stop string that ended the text, if one did."""

    text: str
    stopped: str | None = None


class IncrementalText:
    """Text of one sequence.

    Args:
        tokenizer: turns ids into text.
        stop: the stop strings, none empty.
        include_stop: give the stop string out as the end of the text.
        min_tokens: stops that end in the text of so many tokens are passed over.
        skip_special_tokens: leave special tokens out of the text.
        shown: special tokens that stay in it nonetheless.

    Raises:
        ValueError: an empty stop string, which would match everywhere.
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
    ) -> None:
        if "" in stop:
            raise ValueError("stop holds an empty string; leave it out, or give a text of at least one character")
        self._stream = tokenizer.decode_stream(skip_special_tokens, shown)
        self._matchers = [_Matcher(text) for text in stop]
        self._include_stop = include_stop
        self._tokens_without_stop = min_tokens
        self._held = ""
        self._stopped: str | None = None

    def feed(self, token_id: int) -> TextDelta:
        """The next token's share of the text; after a stop there is none."""
        text = self._stream.step(token_id)
        if self._tokens_without_stop == 0:
            return self._add(text)
        self._tokens_without_stop -= 1
        return self._pass_over(text)

    def finish(self) -> str:
        """What was held back, when generation ends another way; an unfinished character becomes U+FFFD."""
        text = self._stream.finish()
        rest = (self._pass_over(text) if self._tokens_without_stop else self._add(text)).text
        if self._stopped is None:
            rest, self._held = rest + self._held, ""
        return rest

    def _add(self, text: str) -> TextDelta:
        if self._stopped is not None:
            return TextDelta(text="", stopped=self._stopped)
        if not self._matchers:
            return TextDelta(text=text)
        pending = self._held + text
        first: tuple[int, int, str] | None = None  # where it begins, its length, the stop itself
        for matcher in self._matchers:
            begin = matcher.feed(text, len(self._held))
            if begin is not None:
                found = (begin, len(matcher.text), matcher.text)
                first = found if first is None else min(first, found)
        if first is not None:
            begin, length, self._stopped = first
            self._held = ""
            return TextDelta(text=pending[: begin + length if self._include_stop else begin], stopped=self._stopped)
        return self._give(pending)

    def _pass_over(self, text: str) -> TextDelta:
        """Text in which no stop may end; one that begins in it may still become whole."""
        for matcher in self._matchers:
            matcher.skip(text)
        return self._give(self._held + text)

    def _give(self, pending: str) -> TextDelta:
        """Give out all but what may yet become part of a stop."""
        keep = len(pending) - max((matcher.matched for matcher in self._matchers), default=0)
        self._held = pending[keep:]
        return TextDelta(text=pending[:keep])


class _Matcher:
    """One stop string; ``matched`` is the longest end of the text so far that is a proper beginning of it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback = [0] * len(text)
        length = 0
        for index in range(1, len(text)):
            while length and text[index] != text[length]:
                length = self._fallback[length - 1]
            length += text[index] == text[length]
            self._fallback[index] = length

    def feed(self, text: str, offset: int) -> int | None:
        """Where the first match that ``text`` completes begins, counting from ``offset`` characters before it."""
        for index, character in enumerate(text):
            self._step(character)
            if self.matched == len(self.text):
                return offset + index + 1 - len(self.text)
        return None

    def skip(self, text: str) -> None:
        """As :meth:`feed`, for a text in which a match does not count."""
        for character in text:
            self._step(character)
            if self.matched == len(self.text):
                self.matched = self._fallback[-1]

    def _step(self, character: str) -> None:
        while self.matched and character != self.text[self.matched]:
            self.matched = self._fallback[self.matched - 1]
        self.matched += character == self.text[self.matched]
