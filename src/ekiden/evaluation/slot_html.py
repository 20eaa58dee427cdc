"""The slot charts as one self-contained HTML file: inline SVG, no script, light and dark, hover text for every stay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from ekiden.evaluation.slot_chart import colours
from ekiden.evaluation.slots import Stay, stays
from ekiden.evaluation.trace import SlotStep

LABEL_WIDTH, CHART_WIDTH, ROW_HEIGHT, AXIS_HEIGHT = 56, 1000, 26, 30
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{heading}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem; }}
svg {{ width: 100%; height: auto; display: block; }}
svg text {{ font: 12px system-ui, sans-serif; fill: currentColor; }}
svg text.name {{ fill: #000; font-weight: 600; pointer-events: none; }}
.empty {{ fill: currentColor; opacity: .08; }}
.tick {{ stroke: currentColor; opacity: .25; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
th, td {{ text-align: right; padding: .25rem .75rem; border-bottom: 1px solid #8884; }}
th:first-child, td:first-child, td.text {{ text-align: left; }}
.note {{ opacity: .75; }}
</style>
</head>
<body>
<h1>{heading}</h1>
<p>{intro}</p>
{body}
</body>
</html>
"""


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


def chart_svg(chart: ChartData, names: Mapping[str, str], about: Mapping[str, str], *, seconds: float) -> str:
    """An SVG whose full width is ``seconds``. ``about`` is the hover text of each request."""
    height = chart.num_slots * ROW_HEIGHT + AXIS_HEIGHT
    scale = CHART_WIDTH / seconds
    fill = colours(list(names))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LABEL_WIDTH + CHART_WIDTH} {height}" role="img" '
        f'aria-label="{escape(chart.title)}">'
    ]
    for slot in range(chart.num_slots):
        parts.append(f'<text x="0" y="{slot * ROW_HEIGHT + 17}">slot {slot}</text>')
        parts.append(_bar(slot, LABEL_WIDTH, chart.seconds * scale, 'class="empty"'))
    for stay in stays(chart.steps):
        name = names[stay.request_id]
        parts.append(_stay(stay, chart.start, scale, name, about.get(stay.request_id, name), fill[stay.request_id]))
    spacing = next((tick for tick in _TICKS if seconds / tick <= 12), 120)
    for index in range(int(seconds / spacing) + 1):
        x = LABEL_WIDTH + index * spacing * scale
        parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - AXIS_HEIGHT + 6}"/>')
        parts.append(f'<text x="{x + 3:.1f}" y="{height - 10}">{index * spacing:g} s</text>')
    return "\n".join([*parts, "</svg>"])


def _stay(stay: Stay, begin: float, scale: float, name: str, about: str, fill: str) -> str:
    start, end = stay.start - begin, stay.end - begin
    left, width = LABEL_WIDTH + start * scale, max(1.0, (end - start) * scale)
    hover = (
        f"{name}: {about} (steps {stay.first_step + 1} to {stay.last_step + 1}, {stay.output_tokens} tokens, "
        f"{start:.2f} s to {end:.2f} s)"
    )
    bars = _bar(stay.slot, left, width, f'rx="2" fill="{fill}"')
    if stay.padding_from is not None:
        padded = LABEL_WIDTH + (stay.padding_from - begin) * scale
        bars += _bar(stay.slot, padded, max(1.0, left + width - padded), 'fill="#888" opacity=".7"')
    if width >= 12:
        bars += f'<text class="name" x="{left + 3:.1f}" y="{stay.slot * ROW_HEIGHT + 17}">{escape(name)}</text>'
    return f"<g><title>{escape(hover)}</title>{bars}</g>"


def _bar(slot: int, left: float, width: float, look: str) -> str:
    top, height = slot * ROW_HEIGHT + 2, ROW_HEIGHT - 4
    return f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{height}" {look}/>'


def page(
    heading: str,
    intro: str,
    charts: Sequence[ChartData],
    tables: Sequence[TableData],
    *,
    names: Mapping[str, str],
    about: Mapping[str, str],
) -> str:
    """The whole HTML file. All charts share one time scale, so that their lengths compare."""
    longest = max((chart.seconds for chart in charts), default=0.0) or 1.0
    body = [f"<h2>{escape(c.title)}</h2>\n{chart_svg(c, names, about, seconds=longest)}" for c in charts]
    return _PAGE.format(heading=escape(heading), intro=escape(intro), body="\n".join([*body, *map(_table, tables)]))


def _table(table: TableData) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    cells = ["".join(f'<td class="text">{escape(cell)}</td>' for cell in row) for row in table.rows]
    rows = "".join(f"<tr>{row}</tr>" for row in cells)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f"<h2>{escape(table.heading)}</h2>\n<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>\n{note}"
    )
