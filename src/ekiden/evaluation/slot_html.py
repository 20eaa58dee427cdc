"""The slot charts as one self-contained HTML file: inline SVG, no script, light and dark, hover text for every stay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from ekiden.evaluation.slot_chart import colours
from ekiden.evaluation.slots import Stay, stays
from ekiden.evaluation.trace import SlotStep

LABEL_WIDTH, CHART_WIDTH, ROW_HEIGHT, AXIS_HEIGHT = 56, 1000, 26, 30

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
svg text.name { fill: #000; font-weight: 600; pointer-events: none; }
.empty { fill: currentColor; opacity: .08; }
.tick { stroke: currentColor; opacity: .25; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { text-align: right; padding: .25rem .75rem; border-bottom: 1px solid #8884; }
th:first-child, td:first-child, td.text { text-align: left; }
.note { opacity: .75; }
"""


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


def chart_svg(chart: ChartData, names: Mapping[str, str], about: Mapping[str, str], *, seconds: float) -> str:
    """An SVG whose full width is ``seconds``. ``about`` is the hover text of each request."""
    height = chart.num_slots * ROW_HEIGHT + AXIS_HEIGHT
    width = LABEL_WIDTH + CHART_WIDTH
    scale = CHART_WIDTH / seconds
    begin = chart.steps[0].start if chart.steps else 0.0
    end = (chart.steps[-1].end - begin) * scale if chart.steps else 0.0
    fill = colours(list(names))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(chart.title)}">'
    ]
    for slot in range(chart.num_slots):
        top = slot * ROW_HEIGHT
        parts.append(f'<text x="0" y="{top + 17}">slot {slot}</text>')
        parts.append(
            f'<rect class="empty" x="{LABEL_WIDTH}" y="{top + 2}" width="{end:.1f}" height="{ROW_HEIGHT - 4}"/>'
        )
    parts.extend(_stay(stay, begin, scale, names, about, fill) for stay in stays(chart.steps))
    parts.append(_axis(seconds, scale, height))
    parts.append("</svg>")
    return "\n".join(parts)


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
    longest = max((c.steps[-1].end - c.steps[0].start for c in charts if c.steps), default=1.0)
    body = [f"<h1>{escape(heading)}</h1>", f"<p>{escape(intro)}</p>"]
    for chart in charts:
        body.append(f"<h2>{escape(chart.title)}</h2>")
        body.append(chart_svg(chart, names, about, seconds=longest))
    body.extend(_table(table) for table in tables)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{escape(heading)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _stay(
    stay: Stay,
    begin: float,
    scale: float,
    names: Mapping[str, str],
    about: Mapping[str, str],
    fill: Mapping[str, str],
) -> str:
    left = LABEL_WIDTH + (stay.start - begin) * scale
    width = max(1.0, (stay.end - stay.start) * scale)
    top = stay.slot * ROW_HEIGHT
    name = names[stay.request_id]
    hover = (
        f"{name}: {about.get(stay.request_id, stay.request_id)} (steps {stay.first_step + 1} to {stay.last_step + 1}, "
        f"{stay.start - begin:.2f} s to {stay.end - begin:.2f} s)"
    )
    parts = [
        f'<g><title>{escape(hover)}</title><rect x="{left:.1f}" y="{top + 2}" width="{width:.1f}" '
        f'height="{ROW_HEIGHT - 4}" rx="2" fill="{fill[stay.request_id]}"/>'
    ]
    if stay.padding_from is not None:
        padded = LABEL_WIDTH + (stay.padding_from - begin) * scale
        parts.append(
            f'<rect x="{padded:.1f}" y="{top + 2}" width="{max(1.0, left + width - padded):.1f}" '
            f'height="{ROW_HEIGHT - 4}" fill="#888" opacity=".7"/>'
        )
    if width >= 12:
        parts.append(f'<text class="name" x="{left + 3:.1f}" y="{top + 17}">{escape(name)}</text>')
    return "".join(parts) + "</g>"


def _axis(seconds: float, scale: float, height: int) -> str:
    spacing = next((s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60) if seconds / s <= 12), 120)
    parts = []
    for index in range(int(seconds / spacing) + 1):
        x = LABEL_WIDTH + index * spacing * scale
        parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - AXIS_HEIGHT + 6}"/>')
        parts.append(f'<text x="{x + 3:.1f}" y="{height - 10}">{index * spacing:g} s</text>')
    return "".join(parts)


def _table(table: TableData) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join(
        "<tr>" + "".join(f'<td class="text">{escape(cell)}</td>' for cell in row) + "</tr>" for row in table.rows
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f"<h2>{escape(table.heading)}</h2>\n<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>\n{note}"
    )
