"""Plots as lines in SVG units, which ``data/report/plots.html`` draws.

A line has a colour, a pattern of dashes and a mark of its own, so that no colour has to be told apart.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ekiden.evaluation.outcome import ArmFigures, Chart, Curve, Distribution
from ekiden.evaluation.report.axes import Axis, Tick, linear, logarithmic
from ekiden.evaluation.report.numbers import Numbers
from ekiden.evaluation.report.words import Words

STYLES = 6
"""So many lines can be told apart; more begin anew."""
WIDTH, HEIGHT = 440, 280
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 44
"""Margins around the axes."""
_MOST_MARKS = 24
_MARKED_QUANTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    style: int
    points: str
    """As SVG's ``points``."""
    marks: list[tuple[float, float]]
    band: str = ""
    """The interval around it, as a polygon; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    title: str
    x_label: str
    y_label: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    lines: list[Line]
    about: list[str] = field(default_factory=list)
    """What the plot says, in words, a sentence a line: for those who do not see it."""
    level: float | None = None
    """Where a line of reference lies, as a share of the height from below, and what it means."""
    level_name: str = ""


class Plots:
    """Makes plots in one language; an arm has the same style in all of them."""

    def __init__(self, words: Words, numbers: Numbers, arms: Sequence[str]) -> None:
        self._words, self._numbers = words, numbers
        self._style = {arm: index % STYLES for index, arm in enumerate(arms)}

    def distribution(self, figure: str, workload: str, arms: Sequence[ArmFigures], unit: str) -> Plot | None:
        """For each arm the share of requests at or below a value, on a logarithmic axis; None without points."""
        drawn = [(arm.arm, found) for arm in arms if (found := arm.distributions.get(figure)) and found.points]
        if not drawn:
            return None
        x_axis = logarithmic(point for _, found in drawn for point in found.points)
        y_axis = Axis(low=0.0, high=100.0)
        name = self._words.name("metric", figure)
        styles = self._styles([arm for arm, _ in drawn])
        return Plot(
            title=self._words("plot.ecdf", figure=name, workload=workload),
            x_label=f"{name} ({unit}{', ' if unit else ''}{self._words('plot.log')})",
            y_label=self._words("plot.share"),
            x_ticks=x_axis.ticks(),
            y_ticks=[Tick(share / 100, f"{share}%") for share in range(0, 101, 25)],
            lines=[_quantile_line(arm, styles[arm], found, x_axis, y_axis) for arm, found in drawn],
            about=[self._describe(arm, found, unit) for arm, found in drawn],
        )

    def chart(self, chart: Chart) -> Plot:
        """A chart of curves; that of gains has a line at 1."""
        gain = chart.kind == "gain_variance"
        curves = [_finite(curve) for curve in chart.curves]
        x_axis = linear((x for curve in curves for x in curve.x), include=[0.0])
        values = [y for curve in curves for y in (*curve.y, *curve.low, *curve.high)]
        y_axis = linear(values, include=[1.0] if gain else [0.0])
        styles = self._styles([curve.name for curve in curves])
        return Plot(
            title=chart.title,
            x_label=chart.x_label,
            y_label=chart.y_label,
            x_ticks=x_axis.ticks(),
            y_ticks=y_axis.ticks(),
            lines=[_curve_line(curve, styles[curve.name], x_axis, y_axis) for curve in curves if curve.x],
            about=[self._describe_curve(curve) for curve in curves if curve.x],
            level=y_axis.share(1.0) if gain else None,
            level_name=self._words("plot.equality") if gain else "",
        )

    def _styles(self, names: Iterable[str]) -> dict[str, int]:
        """An arm's own style; other names take those that are left, in order."""
        found: dict[str, int] = {}
        for name in names:
            free = [style for style in range(STYLES) if style not in found.values()] or [len(found) % STYLES]
            found[name] = self._style.get(name, free[0])
        return found

    def _describe(self, arm: str, found: Distribution, unit: str) -> str:
        p50, p99 = (self._numbers.of(value, unit) for value in (found.p50, found.p99))
        return self._words("plot.ecdf_describes", arm=arm, p50=p50, p99=p99)

    def _describe_curve(self, curve: Curve) -> str:
        ends = {"first": self._numbers.of(curve.y[0]), "last": self._numbers.of(curve.y[-1])}
        return self._words("plot.curve_describes", name=curve.name, **ends)


def _place(x: float, y: float) -> tuple[float, float]:
    """Shares of the axes as SVG units."""
    return LEFT + x * (WIDTH - LEFT - RIGHT), TOP + (1 - y) * (HEIGHT - TOP - BOTTOM)


def _text(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _quantile_line(arm: str, style: int, found: Distribution, x_axis: Axis, y_axis: Axis) -> Line:
    last = max(1, len(found.points) - 1)
    places = [_place(x_axis.share(value), y_axis.share(100 * index / last)) for index, value in enumerate(found.points)]
    marks = [places[round(last * quantile / 100)] for quantile in _MARKED_QUANTILES if len(places) > 1]
    return Line(arm, style, _text(places), marks)


def _finite(curve: Curve) -> Curve:
    """Without the points that have no place; an interval is kept only if it has an end for every point."""
    ends = len(curve.low) == len(curve.high) == len(curve.x)
    kept = [i for i, (x, y) in enumerate(zip(curve.x, curve.y, strict=False)) if math.isfinite(x) and math.isfinite(y)]
    bands = ends and all(math.isfinite(curve.low[i]) and math.isfinite(curve.high[i]) for i in kept)
    return Curve(
        name=curve.name,
        x=[curve.x[i] for i in kept],
        y=[curve.y[i] for i in kept],
        low=[curve.low[i] for i in kept] if bands else [],
        high=[curve.high[i] for i in kept] if bands else [],
    )


def _curve_line(curve: Curve, style: int, x_axis: Axis, y_axis: Axis) -> Line:
    def places(values: Sequence[float]) -> list[tuple[float, float]]:
        return [_place(x_axis.share(x), y_axis.share(y)) for x, y in zip(curve.x, values, strict=True)]

    along = places(curve.y)
    every = max(1, math.ceil(len(along) / _MOST_MARKS))
    band = _text([*places(curve.low), *reversed(places(curve.high))]) if curve.low else ""
    return Line(curve.name, style, _text(along), along[::every], band)
