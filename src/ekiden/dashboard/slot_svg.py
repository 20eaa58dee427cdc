"""The drawing of slot charts, which the page, the demo and the evaluation's report share: one bar a stay, as SVG.

``data/slot_svg.html`` has the macro ``slot_chart``, and ``data/slot_svg.css`` the look. Charts that are to be compared
get the same ``scale`` and ``ticks``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import count

from jinja2 import Environment, FunctionLoader, StrictUndefined

from ekiden import data

CHART_WIDTH = 1000
"""SVG units that the longest of the charts to be compared takes, labels apart."""
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
_MOST_TICKS = 12
PALETTE = (
    *("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948"),
    *("#b07aa1", "#ff9da7", "#9c755f", "#86bcb6", "#d4a6c8", "#8cd17d"),
)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A request in a slot. Times are seconds from the chart's start."""

    slot: int
    start: float
    end: float
    name: str
    """What is written on it, where it is long enough."""
    about: str
    """Shown under the pointer, and read aloud."""
    fill: str
    padding_from: float | None = None
    """When its row became padding; None when it never did."""
    link: str | None = None
    """Where a click on it leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPicture:
    """One run to draw."""

    title: str
    slots: int
    seconds: float
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """``scale`` is SVG units a second; ``ticks`` are seconds."""

    scale: float
    ticks: Sequence[float]

    @classmethod
    def of(cls, pictures: Sequence[SlotPicture]) -> "TimeAxis":
        """One for all: the longest fills the width, so lengths compare."""
        longest = max((picture.seconds for picture in pictures), default=0.0) or 1.0
        steps = (step * factor for factor in (60**power for power in count()) for step in _TICKS)
        spacing = next(step for step in steps if longest / step <= _MOST_TICKS)
        return cls(scale=CHART_WIDTH / longest, ticks=[index * spacing for index in range(int(longest / spacing) + 1)])


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each, in order; neighbours in the order differ."""
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(names)}


def letters(request_ids: Sequence[str]) -> dict[str, str]:
    """A character for each request, in order: A to Z, a to z, then digits, and round again."""
    return {request_id: _LETTERS[index % len(_LETTERS)] for index, request_id in enumerate(request_ids)}


def drawn(pictures: Sequence[SlotPicture]) -> list[str]:
    """Each picture as an SVG element of its own, all on one time axis. Its look is ``slot_svg.css``."""
    module = environment().get_template("slot_svg.html").module
    axis = TimeAxis.of(pictures)
    return [str(module.slot_chart(picture, axis, CHART_WIDTH)) for picture in pictures]  # type: ignore[attr-defined]


@cache
def environment() -> Environment:
    """Templates of the package's data, all text escaped; a name that nobody gave is an error."""
    return Environment(
        autoescape=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        loader=FunctionLoader(lambda name: files(data).joinpath(*name.split("/")).read_text(encoding="utf-8")),
    )
