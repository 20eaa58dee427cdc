"""The slot charts as one self-contained HTML file: inline SVG, no script, light and dark, hover text for every stay.

``data/slot_charts.html`` is its template.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment

from ekiden import data
from ekiden.evaluation.charts.slot_chart import colours
from ekiden.evaluation.charts.slots import stays
from ekiden.evaluation.charts.trace import SlotStep

CHART_WIDTH = 1000
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartData:
    """One run to draw: its title and its record."""

    title: str
    steps: Sequence[SlotStep]
    num_slots: int

    @property
    def start(self) -> float:
        return self.steps[0].start if self.steps else 0.0

    @property
    def seconds(self) -> float:
        return self.steps[-1].end - self.start if self.steps else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableData:
    """A table below the charts; cells are text."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def page(
    heading: str,
    intro: str,
    charts: Sequence[ChartData],
    tables: Sequence[TableData],
    *,
    names: Mapping[str, str],
    about: Mapping[str, str],
) -> str:
    """The whole HTML file. All charts share one time scale, so that their lengths compare.

    ``names`` and ``about`` are the letter and the hover text of each request.
    """
    longest = max((chart.seconds for chart in charts), default=0.0) or 1.0
    spacing = next((tick for tick in _TICKS if longest / tick <= 12), 120)
    template = files(data).joinpath("slot_charts.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, keep_trailing_newline=True)
    return environment.from_string(template).render(
        heading=heading,
        intro=intro,
        charts=charts,
        tables=tables,
        names=names,
        about=about,
        fill=colours(list(names)),
        stays=stays,
        width=CHART_WIDTH,
        scale=CHART_WIDTH / longest,
        ticks=[index * spacing for index in range(int(longest / spacing) + 1)],
    )
