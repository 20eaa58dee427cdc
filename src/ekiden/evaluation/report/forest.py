"""Intervals of ratios against the thresholds that were fixed beforehand, on one logarithmic axis for all metrics."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ekiden.evaluation.outcome import MetricOutcome
from ekiden.evaluation.plan.conditions import Condition, ConditionError
from ekiden.evaluation.report.axes import Axis, Tick

WIDTH = 360
_FURTHEST = 4.0
"""Ratios beyond this, or its inverse, are drawn as arrows."""
_NARROWEST = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """Where a condition holds: from and to, in SVG units."""

    kind: str
    """``success`` or ``failure``."""
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """One metric; places in SVG units from the left. ``left`` and ``right`` are None if there is no interval."""

    ratio: float | None
    """None too where it lies beyond the axis."""
    left: float | None
    right: float | None
    goes_on_left: bool
    goes_on_right: bool
    equal: float
    strips: list[Strip]
    thresholds: list[float]
    ticks: list[Tick]


def forests(metrics: Sequence[MetricOutcome]) -> list[Forest]:
    """One for each metric, in order, on an axis that all share, so that intervals compare between them."""
    conditions = [
        [(kind, found) for kind, text in _texts(metric) if (found := _parsed(text)) is not None] for metric in metrics
    ]
    axis = _axis([metric for metric, found in zip(metrics, conditions, strict=True) if found], conditions)
    return [_forest(metric, found, axis) for metric, found in zip(metrics, conditions, strict=True)]


def _texts(metric: MetricOutcome) -> list[tuple[str, str]]:
    return [("success", metric.success_condition), ("failure", metric.failure_condition)]


def _parsed(text: str) -> Condition | None:
    """None for what is no condition, such as a sentence: that is printed and not drawn."""
    try:
        return Condition.parse(text)
    except ConditionError:
        return None


def _axis(judged: Sequence[MetricOutcome], conditions: Sequence[Sequence[tuple[str, Condition]]]) -> Axis:
    """As wide as what is judged needs it; a mere measurement may lie beyond."""
    ends = [end for found in conditions for _, condition in found for end in (condition.least, condition.most)]
    for metric in judged:
        ends += [end for end in (metric.comparison.low, metric.comparison.high, metric.comparison.ratio) if end]
    known = [end for end in ends if math.isfinite(end) and end > 0]
    far = max([_NARROWEST, *(max(end, 1 / end) for end in known)])
    far = min(far * 1.1, _FURTHEST)
    return Axis(low=1 / far, high=far, log=True)


def _forest(metric: MetricOutcome, conditions: Sequence[tuple[str, Condition]], axis: Axis) -> Forest:
    def place(value: float) -> float:
        return axis.share(value) * WIDTH if value > 0 else 0.0

    low, high, ratio = metric.comparison.low, metric.comparison.high, metric.comparison.ratio
    there = low is not None or high is not None
    bounds = {end for _, condition in conditions for end in (condition.least, condition.most) if math.isfinite(end)}
    return Forest(
        ratio=place(ratio) if ratio is not None and axis.low <= ratio <= axis.high else None,
        left=place(axis.low if low is None else low) if there else None,
        right=place(axis.high if high is None else high) if there else None,
        goes_on_left=low is None or low < axis.low,
        goes_on_right=high is None or high > axis.high,
        equal=place(1.0),
        strips=[
            Strip(
                kind=kind,
                start=place(condition.least),
                end=place(min(condition.most, axis.high)),
            )
            for kind, condition in conditions
        ],
        thresholds=sorted(place(bound) for bound in bounds),
        ticks=axis.ticks(),
    )
