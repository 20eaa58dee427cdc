"""Text and log-probability entries that come together: the entries' bytes, joined, are the text.

Rules:
- text waits for the end of the token that wrote it, and a token waits for all of its text, also where that is held back
  as the possible beginning of a stop string;
- of a token that a stop string cuts, the entry has the bytes that are part of the text, and the log-probability of the
  whole token; tokens behind it have no entry;
- special tokens that do not belong to the text have entries with their name, and add no bytes.
"""

import codecs
from collections import deque
from dataclasses import dataclass, replace
from enum import Enum, auto

from ekiden.models.tokenizer import Tokenizer
from ekiden.state.request import TokenLogprobs


class End(Enum):
    """``STOPPED``: a stop string cut the text. ``WHOLE``: all tokens belong to it."""

    STOPPED = auto()
    WHOLE = auto()


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One token with its log-probabilities; ``data`` is what of its bytes is in the text, or a special token's name."""

    token_id: int
    data: bytes
    logprobs: TokenLogprobs


@dataclass(frozen=True, slots=True)
class _Waiting:
    entry: TokenEntry
    written: bytes
    end: int
    """How many characters the text has with this token."""
    whole: bool
    """No character is unfinished behind it."""


class AlignedText:
    """One answer's text and entries. ``skipped``: special tokens that are not part of the text."""

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: deque[_Waiting] = deque()
        self._characters = 0
        self._given = 0
        self._text = ""

    def add(self, token: int, logprobs: TokenLogprobs, data: bytes | None = None) -> None:
        """``data``: what of the token's bytes belongs to the text, if not all."""
        if data is None:
            data = self._tokenizer.token_bytes(token)
        written = b"" if token in self._skipped else data
        self._characters += len(self._decoder.decode(written))
        whole = not self._decoder.getstate()[0]
        self._waiting.append(_Waiting(TokenEntry(token, data, logprobs), written, self._characters, whole))

    def take(self, text: str, end: End | None) -> tuple[str, list[TokenEntry]]:
        """What can be given out now that ``text`` may be; all of it at the end."""
        self._text += text
        if end is not None:
            text, self._text = self._text, ""
            entries = [each.entry for each in self._waiting] if end is End.WHOLE else self._cut(len(text))
            self._waiting.clear()
            return text, entries
        may = self._given + len(self._text)
        count = 0
        for place, each in enumerate(self._waiting, 1):
            if each.end > may:
                break
            if each.whole:
                count = place
        given = [self._waiting.popleft() for _ in range(count)]
        length = given[-1].end - self._given if given else 0
        text, self._text = self._text[:length], self._text[length:]
        self._given += length
        return text, [each.entry for each in given]

    def _cut(self, left: int) -> list[TokenEntry]:
        """The entries of the next ``left`` characters, where the text ends."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        entries: list[TokenEntry] = []
        for each in self._waiting:
            if left == 0:
                break
            for length, byte in enumerate(each.written, 1):
                left -= len(decoder.decode(bytes((byte,))))
                if left == 0:
                    entries.append(replace(each.entry, data=each.written[:length]))
                    break
            else:
                entries.append(each.entry)
        return entries
