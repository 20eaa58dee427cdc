"""Splits what a model writes into its reasoning and the answer that follows it, while the text grows.

Rules:
- reasoning comes first or not at all: an opening mark after other text is text;
- what is given out never depends on how the text was cut into pieces;
- the marks, and the line ends beside them, belong to neither part;
- reasoning that is not closed before the text ends is reasoning.
"""

from enum import Enum
from typing import Final, NamedTuple

from ekiden.state.sampling_params import Thinking


class Marks(NamedTuple):
    """How a family of models marks its reasoning."""

    opening: str
    closing: str


THINK: Final = Marks("<think>", "</think>")
MISTRAL: Final = Marks("[THINK]", "[/THINK]")
KNOWN_MARKS: Final = (THINK, MISTRAL)
MAX_SPACE: Final = 64
"""Characters of white space that may come before an opening mark."""


class Place(Enum):
    """What a text has come to."""

    BEFORE = "an opening mark may come"
    INSIDE = "reasoning"
    BEHIND = "line ends after the closing mark"
    ANSWER = "the answer"


class ThinkingSplitter:
    """One text. ``place`` is where its end is. The work for a piece follows its own length."""

    def __init__(self, thinking: Thinking) -> None:
        self._thinking = thinking
        self.place = Place.BEFORE
        self._held = ""
        """What may still become a mark; before the first mark also the white space before it."""
        self._ends = ""
        """Line ends in the reasoning, until it is known whether more of it follows."""
        self._said = False

    def feed(self, text: str) -> tuple[str, str]:
        """What the next piece of text adds to the reasoning and to the answer."""
        if self.place is Place.ANSWER:
            return "", text
        text, self._held = self._held + text, ""
        if self.place is Place.BEFORE:
            text = self._begin(text)
        reasoning = ""
        if self.place is Place.INSIDE:
            reasoning, text = self._reason(text)
        if self.place is Place.BEHIND:
            text = text.lstrip("\n")
            if text:
                self.place = Place.ANSWER
        return reasoning, text

    def finish(self) -> tuple[str, str]:
        """What was held back, when no text follows."""
        held, self._held = self._held, ""
        if self.place is Place.BEFORE and not self._thinking.begun:
            return "", held
        return self._new(held.rstrip("\n")), ""

    def _begin(self, text: str) -> str:
        """Look for the opening mark; returns what is behind it, or all of the text when there is none."""
        opening, start = self._thinking.opening, text.lstrip()
        if len(text) - len(start) <= MAX_SPACE:
            if start.startswith(opening):
                self.place = Place.INSIDE
                return start[len(opening) :]
            if opening.startswith(start):
                self._held = text
                return ""
        self.place = Place.INSIDE if self._thinking.begun else Place.ANSWER
        return text

    def _reason(self, text: str) -> tuple[str, str]:
        """The reasoning up to the closing mark, and what is behind it."""
        closing = self._thinking.closing
        at = text.find(closing)
        if at >= 0:
            self.place = Place.BEHIND
            return self._new(text[:at].rstrip("\n")), text[at + len(closing) :]
        keep = next((n for n in range(len(closing) - 1, 0, -1) if text.endswith(closing[:n])), 0)
        text, self._held = text[: len(text) - keep], text[len(text) - keep :]
        said = text.rstrip("\n")
        new = self._new(said)
        self._ends += text[len(said) :]
        return new, ""

    def _new(self, text: str) -> str:
        """More of the reasoning, with the line ends before it, unless it begins with them."""
        if not self._said:
            self._ends, text = "", text.lstrip("\n")
        if not text:
            return ""
        self._said = True
        text, self._ends = self._ends + text, ""
        return text
