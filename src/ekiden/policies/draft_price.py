"""What drafts cost a step: rows, and changes of the number of tokens that the backend computes."""

from dataclasses import dataclass
from typing import Final

MARGIN: Final = 1.2
"""A draft must be likelier than the break-even by this factor, since its chance is an estimate."""
_VAIN: Final = 0.5
"""What a row of padding counts for, as a draft in its place is not free either: it keeps the size from going down."""


@dataclass(slots=True)
class StepPrice:
    """What a step costs: seconds without drafts, of one row more, and of another size than the last step's; and the
    tokens that it gives without drafts.

    ``free`` rows more cost nothing. So many as ``padding`` would be computed in vain otherwise, but a draft in their
    place puts off that they are no longer; one beyond them makes ``changes`` of size. ``fixed``: the step is of another
    size whatever is done.
    """

    seconds: float
    row: float
    change: float
    tokens: float
    free: int
    padding: int = 0
    changes: float = 0.0
    fixed: bool = False

    @property
    def break_even(self) -> float:
        """The chance from which on a draft that is not free is worth its place."""
        return MARGIN * self.row * self.tokens / self.seconds

    def tokens_per_second(self, drafts: int, accepted: float) -> float:
        """With so many drafts, of which so many are right on average."""
        paid, vain = max(0, drafts - self.free), max(0, self.padding - max(drafts, self.free))
        changes = self.changes if drafts > max(self.padding, self.free) else float(self.fixed)
        return (self.tokens + accepted) / (self.seconds + self.row * (paid + _VAIN * vain) + self.change * changes)


@dataclass(slots=True)
class StepSize:
    """The number of tokens that the backend computes in a step, with its padding: see
    :attr:`RunnerInfo.tokens_per_change`, and docs/decisions/0028 for the rule."""

    worth: int
    least: int
    last: int = 0
    spent: int = 0

    def padding(self, tokens: int) -> int:
        """Rows that are added to a step of so many tokens."""
        missing = self.last - tokens
        kept = 0 <= missing <= self.worth - self.spent
        return missing if kept else max(0, self.least - tokens)

    def changes(self, tokens: int) -> bool:
        return max(tokens + self.padding(tokens), self.least) != self.last

    def compute(self, tokens: int) -> None:
        """The step has so many tokens."""
        if self.changes(tokens):
            self.last, self.spent = max(tokens, self.least), 0
        else:
            self.spent += self.last - max(tokens, self.least)
