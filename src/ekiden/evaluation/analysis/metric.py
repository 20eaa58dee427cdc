"""What a metric is: what each run contributes, and how contributions of any runs become one value.

A value is always pooled: a p99 is that of all requests of the runs together, and a rate divides sums by sums. A mean of
means would weigh a block of few requests as one of many. The comparison resamples blocks some thousand times, so what a
run contributes is worked out once (``of_run``) and only put together again (``pooled``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.results import ArmRun
from ekiden.measure.percentiles import percentiles

Values = npt.NDArray[np.float64]


class Sums(NamedTuple):
    """A run's share of a rate or a proportion: ``amount`` over ``per``, such as good requests over seconds."""

    amount: float
    per: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFinding:
    """What two arms' answers to the same requests gave. ``value`` is None where no request was answered by both."""

    value: float | None
    compared: int
    """How many requests both answered in a way that can be compared."""
    first_difference: str = ""
    """The first one that differs, in words: its id, the position and the two tokens. Empty where nothing differs."""


def ratio_of_sums(parts: Sequence[Sums]) -> float | None:
    """Sum of the amounts over the sum of what they are divided by; None for a divisor of 0."""
    per = sum(part.per for part in parts)
    return sum(part.amount for part in parts) / per if per > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDef:
    """A figure by name, with the formula that is printed beside it: ``of_run`` and ``pooled``, or ``pair_value``."""

    name: str
    formula: str
    unit: str
    direction: str
    """``up``: more is better; ``down``: less is."""
    of_run: Callable[[ArmRun, Objectives], Any] | None = None
    """What one run contributes, such as :class:`Sums` or an array of values; None where it cannot be had."""
    pooled: Callable[[Sequence[Any]], float | None] = ratio_of_sums
    """The value of some runs' contributions, none of which is None, in any order and perhaps repeated."""
    pair_value: Callable[[Sequence[ArmRun], Sequence[ArmRun]], PairFinding] | None = None
    """For what only both arms together have, such as the share of equal answers: the candidate's runs and the
    baseline's of the same blocks. It is judged as it is, not as a ratio."""
    scale: str = "ratio"
    """How two arms are compared: ``ratio``, candidate / baseline; or ``difference``, candidate - baseline, for shares
    and counts that are often 0, such as errors, or the gap between tenants. A plan's ``result`` is that."""
    min_values: int = 1
    """With fewer values over all runs the figure is "not estimable": 299 for a p99, 2,995 for a p99.9."""
    count: Callable[[Sequence[Any]], int] | None = None
    """How many values the contributions hold, where ``min_values`` is to be kept."""

    def __post_init__(self) -> None:
        if (self.of_run is None) == (self.pair_value is None):
            raise ValueError(f"metric {self.name}: exactly one of of_run and pair_value is needed")
        if self.direction not in ("up", "down"):
            raise ValueError(f"metric {self.name}: direction is 'up' or 'down', not {self.direction!r}")
        if self.scale not in ("ratio", "difference"):
            raise ValueError(f"metric {self.name}: scale is 'ratio' or 'difference', not {self.scale!r}")

    def value(self, runs: Sequence[ArmRun], objectives: Objectives) -> float | None:
        """The pooled value of the runs; None where one lacks its part, where there are too few values, or no runs."""
        parts = self.parts(runs, objectives)
        return None if parts is None or not self.enough(parts) else self.pooled(parts)

    def parts(self, runs: Sequence[ArmRun], objectives: Objectives) -> list[Any] | None:
        """The runs' contributions; None where there is none or one is missing, and for a metric of pairs."""
        if self.of_run is None:
            return None
        found = [self.of_run(run, objectives) for run in runs]
        return None if not found or any(part is None for part in found) else found

    def enough(self, parts: Sequence[Any]) -> bool:
        """Whether so many values can carry this figure."""
        return self.count is None or self.count(parts) >= self.min_values


@dataclass(frozen=True, slots=True)
class PooledPercentile:
    """A ``pooled`` for arrays of values: their percentile ``level``, by the one rule of all percentiles."""

    level: float

    def __call__(self, parts: Sequence[Values]) -> float | None:
        values = np.concatenate(parts)
        return percentiles(values, [self.level])[0] if values.size else None

    def resampled(self, parts: Sequence[Values], counts: npt.NDArray[np.int64]) -> Values:
        """The same with each part counting ``counts`` (resamples, parts) times, for all rows at once; NaN where nothing
        is left. The values are put in order only once, and each row finds its place among them by halving."""
        values = np.concatenate(parts)
        order = np.argsort(values, kind="stable")
        part_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])[order]
        upto = np.cumsum(part_of[:, None] == np.arange(len(parts)), axis=0)
        found = np.full(len(counts), np.nan)
        totals = counts @ np.array([len(part) for part in parts])
        some = np.flatnonzero(totals > 0)
        if not some.size:
            return found
        position = (totals[some] - 1) * self.level / 100
        below = np.floor(position)
        low, high = (values[order[_places(upto, counts[some], rank)]] for rank in (below, np.ceil(position)))
        found[some] = low + (position - below) * (high - low)
        return found


def _places(upto: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], ranks: Values) -> npt.NDArray[np.int64]:
    """For each row of ``counts`` the first place up to which more than ``rank`` values lie. ``upto`` (values, parts)
    says how many values of each part lie up to a place."""
    first, last = np.zeros(len(counts), np.int64), np.full(len(counts), len(upto) - 1)
    while (first < last).any():
        middle = (first + last) // 2
        is_enough = (upto[middle] * counts).sum(axis=1) > ranks
        first, last = np.where(is_enough, first, middle + 1), np.where(is_enough, middle, last)
    return first


def pooled_percentile(level: float) -> PooledPercentile:
    """A ``pooled`` for arrays of values."""
    return PooledPercentile(level)


def number_of_values(parts: Sequence[Values]) -> int:
    """A ``count`` for arrays of values."""
    return sum(len(part) for part in parts)
