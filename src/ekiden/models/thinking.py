"""Splits what a model writes into its reasoning and the answer that follows it, while the text grows.

Rules:
- reasoning comes first or not at all: an opening mark after other text is text;
- what is given out never depends on how the text was cut into pieces;
- the marks, and the line ends beside them, belong to neither part;
- reasoning that is not closed before the text ends is reasoning.
"""

from enum import Enum

from ekiden.state.sampling_params import Thinking


class Place(Enum):
    """What a text has come to."""

    BEFORE = "an opening mark may come"
    INSIDE = "reasoning"
    BEHIND = "line ends after the closing mark"
    ANSWER = "the answer"


class ThinkingSplitter:
    """One text. ``place`` is where its end is."""

    def __init__(self, thinking: Thinking) -> None:
        self._thinking = thinking
        self.place = Place.BEFORE
        self._held = ""
        self._said = False

    def feed(self, text: str) -> tuple[str, str]:
        """What the next piece of text adds to the reasoning and to the answer."""
        if self.place is Place.ANSWER:
            return "", text
        self._held += text
        if self.place is Place.BEFORE:
            self._begin()
        reasoning = self._reason() if self.place is Place.INSIDE else ""
        if self.place is Place.BEHIND:
            self._held = self._held.lstrip("\n")
            if self._held:
                self.place = Place.ANSWER
        answer = ""
        if self.place is Place.ANSWER:
            answer, self._held = self._held, ""
        return reasoning, answer

    def finish(self) -> tuple[str, str]:
        """What was held back, when no text follows."""
        held, self._held = self._held, ""
        if self.place is Place.BEFORE and not self._thinking.begun:
            return "", held
        return self._new(held).rstrip("\n"), ""

    def _begin(self) -> None:
        opening, start = self._thinking.opening, self._held.lstrip()
        if start.startswith(opening):
            self._held, self.place = start[len(opening) :], Place.INSIDE
        elif not opening.startswith(start):
            self.place = Place.INSIDE if self._thinking.begun else Place.ANSWER

    def _reason(self) -> str:
        """Reasoning up to the closing mark, or up to what may become part of the mark or of the line ends before it."""
        closing, held = self._thinking.closing, self._held
        at = held.find(closing)
        if at >= 0:
            self._held, self.place = held[at + len(closing) :], Place.BEHIND
            return self._new(held[:at].rstrip("\n"))
        beginnings = (length for length in range(len(closing) - 1, 0, -1) if held.endswith(closing[:length]))
        said = held[: len(held) - next(beginnings, 0)].rstrip("\n")
        self._held = held[len(said) :]
        return self._new(said)

    def _new(self, text: str) -> str:
        """``text`` without the line ends before the reasoning."""
        if not self._said:
            text = text.lstrip("\n")
            self._said = bool(text)
        return text
