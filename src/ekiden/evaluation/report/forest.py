"""Results and their intervals against the thresholds that were fixed beforehand, on axes that suit their scale."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ekiden.evaluation.outcome import MetricOutcome
from ekiden.evaluation.plan.conditions import Condition, ConditionError
from ekiden.evaluation.report.axes import Axis, Tick
from ekiden.evaluation.report.numbers import SHARES

WIDTH = 360
_FURTHEST = 10.0
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
    """The result, whatever its scale; None too where it lies beyond the axis."""
    left: float | None
    right: float | None
    goes_on_left: bool
    goes_on_right: bool
    equal: float | None
    """Where the arms are equal; None for a share that both have together."""
    strips: list[Strip]
    thresholds: list[float]
    ticks: list[Tick]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    metric: MetricOutcome
    conditions: list[tuple[str, Condition]]

    @property
    def ends(self) -> list[float]:
        """All that an axis should hold: the interval, the result and the ends of the conditions."""
        found = self.metric.comparison
        ends = [end for _, condition in self.conditions for end in (condition.least, condition.most)]
        ends += [end for end in (found.low, found.high, found.ratio) if end is not None]
        return [end for end in ends if math.isfinite(end)]


def forests(metrics: Sequence[MetricOutcome]) -> list[Forest]:
    """One for each metric, in order. The intervals of one metric share an axis, so that they compare: of ratios a
    logarithmic one around 1, of differences one around 0. Another metric's may be many times as far away."""
    judged = [_Judged(metric=metric, conditions=_conditions(metric)) for metric in metrics]
    drawn = []
    for one in judged:
        alike = [other for other in judged if _axis_key(other) == _axis_key(one)]
        if _scale(one) == "ratio":
            axis = _around_one([other for other in alike if other.conditions])
            drawn.append(_forest(one, axis, equal=1.0, ticks=axis.ticks()))
        elif _scale(one) == "difference":
            axis = _around_zero(alike)
            drawn.append(_forest(one, axis, equal=0.0, ticks=_ticks(axis, one.metric.unit, "+")))
        else:
            axis = _up_to_one(one)
            drawn.append(_forest(one, axis, equal=None, ticks=_ticks(axis, "share", "", "%")))
    return drawn


def _scale(one: _Judged) -> str:
    return one.metric.comparison.scale


def _axis_key(one: _Judged) -> tuple[str, str]:
    return _scale(one), one.metric.metric


def _conditions(metric: MetricOutcome) -> list[tuple[str, Condition]]:
    texts = [("success", metric.success_condition), ("failure", metric.failure_condition)]
    return [(kind, found) for kind, text in texts if (found := _parsed(text)) is not None]


def _parsed(text: str) -> Condition | None:
    """None for what is no condition, such as a sentence: that is printed and not drawn."""
    try:
        return Condition.parse(text)
    except ConditionError:
        return None


def _around_one(judged: Sequence[_Judged]) -> Axis:
    """As wide as what is judged needs it; a mere measurement may lie beyond."""
    known = [end for one in judged for end in one.ends if end > 0]
    far = max([_NARROWEST, *(max(end, 1 / end) for end in known)])
    far = min(far * 1.1, _FURTHEST)
    return Axis(low=1 / far, high=far, log=True)


def _around_zero(judged: Sequence[_Judged]) -> Axis:
    far = max((abs(end) for one in judged for end in one.ends), default=0.0) * 1.15 or 1.0
    return Axis(low=-far, high=far)


def _up_to_one(one: _Judged) -> Axis:
    """Of a share: from a little below all that is known, and a little beyond 1, where success may lie."""
    least = min([0.9, *one.ends])
    return Axis(low=max(0.0, least - (1 - least) * 0.1), high=1 + (1 - least) * 0.15)


def _ticks(axis: Axis, unit: str, sign: str, suffix: str = "") -> list[Tick]:
    """Shares in hundredths. ``sign`` goes before what is above 0; none is written above 100%, which no share is."""
    factor = 100 if unit in SHARES else 1
    scaled = Axis(low=axis.low * factor, high=axis.high * factor)
    ticks = scaled.ticks()
    if suffix:
        ticks = [tick for tick in ticks if float(tick.text) <= factor]
    return [Tick(tick.at, _signed(tick.text, sign) + suffix) for tick in ticks]


def _signed(text: str, sign: str) -> str:
    return sign + text if float(text) > 0 else text.replace("-", "−")


def _forest(one: _Judged, axis: Axis, *, equal: float | None, ticks: list[Tick]) -> Forest:
    def place(value: float) -> float:
        return axis.share(value) * WIDTH

    found = one.metric.comparison
    low, high, ratio = found.low, found.high, found.ratio
    there = low is not None or high is not None
    ends = [end for _, condition in one.conditions for end in (condition.least, condition.most)]
    return Forest(
        ratio=place(ratio) if ratio is not None and axis.low <= ratio <= axis.high else None,
        left=place(axis.low if low is None else low) if there else None,
        right=place(axis.high if high is None else high) if there else None,
        goes_on_left=low is None or low < axis.low,
        goes_on_right=high is None or high > axis.high,
        equal=None if equal is None else place(equal),
        strips=[
            Strip(kind=kind, start=place(condition.least), end=place(min(condition.most, axis.high)))
            for kind, condition in one.conditions
        ],
        thresholds=sorted({place(end) for end in ends if math.isfinite(end)}),
        ticks=ticks,
    )
