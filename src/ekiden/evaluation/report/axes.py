"""Axes of plots: where a value lies, and which values are written along an axis."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

_MOST_TICKS = 6
_NOTHING = 1e-300
"""Magnitudes below it count as 0: a share of them, or a step between them, may round to 0."""


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    """Share of the axis, from 0 to 1."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Values from ``low`` to ``high``, which differ; above 0 where the axis is logarithmic."""

    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies, 0 at ``low`` and 1 at ``high``; values beyond lie at the end."""
        if self.log:
            value = max(value, self.low)
            place = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, place))

    def ticks(self) -> list[Tick]:
        values = _log_values(self.low, self.high) if self.log else _even_values(self.low, self.high)
        return [Tick(self.share(value), f"{value:.10g}") for value in values]


def linear(values: Iterable[float], *, include: Iterable[float] = ()) -> Axis:
    """An axis that holds all the values, with a little room; 0 to 1 where there are none."""
    known = [value if abs(value) >= _NOTHING else 0.0 for value in (*values, *include) if math.isfinite(value)]
    if not known:
        return Axis(low=0.0, high=1.0)
    low, high = min(known), max(known)
    room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return Axis(low=0.0 if low == 0 else low - room, high=high + room)


def logarithmic(values: Iterable[float]) -> Axis:
    """Values of 0 and below, which have no place on it, lie at its left end."""
    known = [value for value in values if math.isfinite(value) and value >= _NOTHING]
    if not known:
        return Axis(low=0.1, high=10.0, log=True)
    low, high = min(known), max(known)
    return Axis(low=low / 1.1, high=high * 1.1, log=True)


def _even_values(low: float, high: float) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten."""
    rough = (high - low) / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_values(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, or fewer where those are too many; even steps where they are too few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [factor * 10.0**power for power in powers for factor in factors]
        found = [value for value in found if low <= value <= high]
        if len(found) <= _MOST_TICKS + 1:
            break
    if len(found) > _MOST_TICKS + 1:
        found = found[:: math.ceil(len(found) / _MOST_TICKS)]
    return found if len(found) >= 2 else _even_values(low, high)
