"""Conditions on a result, such as ``result >= 1.1`` or ``result > 0.9 && result < 1.1``.

The whole grammar::

    condition  = comparison { ("&&" | "and") comparison }
    comparison = "result" (">=" | ">" | "<=" | "<" | "==") number

So a condition is a range of numbers, whose ends belong to it or do not. Nothing is executed to read or to judge one.
"""

import math
import re
from dataclasses import dataclass

from ekiden.errors import UserError

_JOINED = re.compile(r"\s*&&\s*|\s+and\s+")
_COMPARISON = re.compile(r"result\s*(?P<sign>>=|<=|==|>|<)\s*(?P<number>[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)")
_HOW = "write such as `result >= 1.1` or `result > 0.9 && result < 1.1`"


class ConditionError(UserError, ValueError):
    """A condition that cannot be read, or that no number meets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The numbers from ``least`` to ``most``; an end that is ``open`` does not belong to them itself."""

    text: str
    """As it was written."""
    least: float = -math.inf
    least_open: bool = False
    most: float = math.inf
    most_open: bool = False

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Raises :class:`ConditionError`, which quotes the text and says how to write one."""
        ends = cls(text=text)
        for part in _JOINED.split(text.strip()):
            found = _COMPARISON.fullmatch(part)
            if found is None or not math.isfinite(number := float(found["number"])):
                raise ConditionError(f"{part!r} is no comparison of `result` with a number; {_HOW}")
            ends = ends._within(found["sign"], number)
        if ends._is_empty():
            raise ConditionError(f"no number meets {text!r}; {_HOW}")
        return ends

    def holds(self, value: float) -> bool:
        """Whether one number meets it; NaN meets none."""
        above = self.least < value if self.least_open else self.least <= value
        return above and (value < self.most if self.most_open else value <= self.most)

    def holds_for_all(self, low: float | None, high: float | None) -> bool | None:
        """For the interval from ``low`` to ``high``, ends included: True if every number of it meets the condition,
        False if none does, None if some do. An end that is None is unknown, so the interval goes on without end there.

        Raises ValueError for an interval whose ends are NaN or the wrong way round.
        """
        start = -math.inf if low is None else low
        end = math.inf if high is None else high
        if not start <= end:
            raise ValueError(f"the interval from {low} to {high} is none")
        if self.holds(start) and self.holds(end):  # a condition is one range, so all between meet it as well
            return True
        beyond = end < self.least or (self.least_open and end == self.least)
        before = start > self.most or (self.most_open and start == self.most)
        return False if beyond or before else None

    def overlaps(self, other: "Condition") -> bool:
        """Whether some number meets both."""
        mine = self._within(">" if other.least_open else ">=", other.least)
        return not mine._within("<" if other.most_open else "<=", other.most)._is_empty()

    def _within(self, sign: str, number: float) -> "Condition":
        """Those of the numbers that also meet one comparison."""
        least, least_open, most, most_open = self.least, self.least_open, self.most, self.most_open
        is_open = "=" not in sign
        if sign in (">", ">=", "==") and (number, is_open) > (least, least_open):
            least, least_open = number, is_open
        if sign in ("<", "<=", "==") and (number, not is_open) < (most, not most_open):
            most, most_open = number, is_open
        return Condition(text=self.text, least=least, least_open=least_open, most=most, most_open=most_open)

    def _is_empty(self) -> bool:
        return self.least > self.most or (self.least == self.most and (self.least_open or self.most_open))

    def __str__(self) -> str:
        return self.text


def condition_at(where: str, text: str, faults: list[str]) -> Condition | None:
    """The condition that stands at a place of a plan; None if it has a fault, which is added to ``faults``."""
    try:
        return Condition.parse(text)
    except ConditionError as error:
        faults.append(f"{where}: {error}")
        return None
