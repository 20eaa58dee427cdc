"""The slot charts as one self-contained HTML file: inline SVG, no script, light and dark, hover text for every stay.

``data/slot_charts.html`` is its template; :mod:`ekiden.dashboard.slot_svg` has the drawing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ekiden.dashboard.slot_svg import CHART_WIDTH, Bar, SlotPicture, TimeAxis, colours, environment
from ekiden.evaluation.charts.slots import stays
from ekiden.evaluation.charts.trace import SlotStep


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartData:
    """One run to draw: its title and its record."""

    title: str
    steps: Sequence[SlotStep]
    num_slots: int


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
    fill = colours(list(names))
    pictures = [_picture(chart, names, about, fill) for chart in charts]
    template = environment().get_template("slot_charts.html")
    return template.render(
        heading=heading,
        intro=intro,
        pictures=pictures,
        tables=tables,
        axis=TimeAxis.of(pictures),
        width=CHART_WIDTH,
    )


def _picture(
    chart: ChartData, names: Mapping[str, str], about: Mapping[str, str], fill: Mapping[str, str]
) -> SlotPicture:
    begin = chart.steps[0].start if chart.steps else 0.0
    bars = []
    for stay in stays(chart.steps):
        name, start, end = names[stay.request_id], stay.start - begin, stay.end - begin
        bars.append(
            Bar(
                slot=stay.slot,
                start=start,
                end=end,
                name=name,
                about=f"{name}: {about.get(stay.request_id, name)} (steps {stay.first_step + 1} to "
                f"{stay.last_step + 1}, {stay.output_tokens} tokens, {start:.2f} s to {end:.2f} s)",
                fill=fill[stay.request_id],
                padding_from=None if stay.padding_from is None else stay.padding_from - begin,
            )
        )
    return SlotPicture(
        title=chart.title,
        slots=chart.num_slots,
        seconds=chart.steps[-1].end - begin if chart.steps else 0.0,
        bars=bars,
    )
