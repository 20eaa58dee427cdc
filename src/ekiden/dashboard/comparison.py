"""Two runs side by side: their slots on one time axis, and the distributions of what their requests got.

Both are counted from their first arrival on, so that two runs of one load lie upon each other.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from ekiden.dashboard.part import Part, read_part
from ekiden.dashboard.period import slots_at
from ekiden.dashboard.shapes import Bar, Compared, Comparison, Levels
from ekiden.dashboard.slot_svg import Bar as DrawnBar
from ekiden.dashboard.slot_svg import SlotPicture, colours, drawn, letters
from ekiden.evidence.period_rows import PeriodRows
from ekiden.evidence.reader import LedgerReader
from ekiden.ledger.records import REFUSED
from ekiden.measure.percentiles import percentiles
from ekiden.state.controls import SetBy

MOST_DRAWN: Final = 1_500
"""Bars of one run."""
DRAWN_SECONDS: Final = 120.0
MOST_VALUES: Final = 4
"""Of a setting that was changed, in words."""
LEVELS: Final = (10, 50, 90, 95, 99)
FORMULAS: Final = {
    "ttft": "first token - arrival, s",
    "itl": "from the end of a turn to the end of the next, weighed by its rows of one token, s",
    "e2e": "end - arrival, s",
    "tokens_per_second": "output tokens / (end - first token), of answers of two tokens and more, tokens/s",
    "queue": "admission - arrival, s",
}


class _Side(NamedTuple):
    reader: LedgerReader
    part: Part
    begin: int
    """Microseconds of the run: the first arrival, and ``start`` after it."""
    until: int
    compared: Compared


def compare(a: LedgerReader, b: LedgerReader, *, start: float = 0.0, seconds: float | None = None) -> Comparison:
    """``start``: seconds after the first arrivals at which both begin; ``seconds``: how long a time is compared, all
    without. At most the first :data:`DRAWN_SECONDS` of it are drawn."""
    with a.snapshot(), b.snapshot():
        sides = [_side(reader, start, seconds) for reader in (a, b)]
        longest = max(side.compared.seconds for side in sides)
        shown = min(longest, DRAWN_SECONDS)
        bars = [_bars(side, shown) for side in sides]
        tenants = sorted({bar.tenant for own in bars for bar in own})
        fill = colours(tenants) if len(tenants) > 1 else {}
        pictures = drawn([_picture(side, own, shown, fill) for side, own in zip(sides, bars, strict=True)])
    first, second = (side.compared for side in sides)
    settings = first.settings | second.settings
    return Comparison(
        a=first,
        b=second,
        differences=_differences(first, second),
        differing={
            name: (first.settings.get(name), second.settings.get(name))
            for name in settings
            if first.settings.get(name) != second.settings.get(name)
        },
        formulas=FORMULAS,
        start=start,
        end=start + shown,
        pictures=pictures,
        tenants=fill,
        whole=shown == longest and all(side.part.whole for side in sides) and max(map(len, bars)) < MOST_DRAWN,
    )


def _side(reader: LedgerReader, start: float, seconds: float | None) -> _Side:
    rows = PeriodRows(reader)
    last = rows.end_of(rows.last)
    begin = rows.first_arrival() + round(start * 1e6)
    until = max(begin, last if seconds is None else min(last, begin + round(seconds * 1e6)))
    part = read_part(reader, begin, min(until, begin + round(DRAWN_SECONDS * 1e6)))
    return _Side(reader, part, begin, until, _compared(reader, part, begin, until))


def _compared(reader: LedgerReader, part: Part, begin: int, until: int) -> Compared:
    header, rows = reader.header, part.rows
    first, last = rows.turns_of(begin, until)
    ends = rows.figures(first, last)
    whole = [end for end in ends if end.reason != REFUSED]
    gaps = [(step.gap, step.decode_rows) for step in rows.steps(first, last)[0] if step.gap and step.decode_rows]
    values = {
        "ttft": [(end.first_token - end.arrival) / 1e6 for end in whole if end.first_token is not None],
        "e2e": [(end.at - end.arrival) / 1e6 for end in whole],
        "queue": [(end.admitted - end.arrival) / 1e6 for end in whole if end.admitted is not None],
        "tokens_per_second": [
            (end.output_tokens - 1) * 1e6 / (end.at - end.first_token)
            for end in whole
            if end.first_token is not None and end.output_tokens > 1 and end.at > end.first_token
        ],
    }
    distributions = {name: _levels(found) for name, found in values.items()}
    distributions["itl"] = _levels([gap / 1e6 for gap, _ in gaps], [rows for _, rows in gaps])
    settings = _settings(reader, until)
    return Compared(
        run_id=header.run_id,
        label=f"{settings.get('batching')}, {settings.get('scheduling_policy')}",
        model=header.model_id,
        seconds=(until - begin) / 1e6,
        requests=len(ends),
        refused=len(ends) - len(whole),
        output_tokens=sum(end.output_tokens for end in whole),
        slots=slots_at(reader, part),
        settings=settings,
        distributions=distributions,
    )


def _settings(reader: LedgerReader, until: int) -> dict[str, Any]:
    """What the run was started with; where it was changed later, all its values in words: ``fcfs → fair``."""
    header = reader.header
    settings: dict[str, Any] = {
        **header.scheduler, **header.cache, "num_blocks": header.num_blocks, "model": header.model_id,
    }  # fmt: skip
    later: dict[str, list[str]] = {}
    for row in reader.controls_between(0, until + 1):
        if row.name in settings and row.set_by != SetBy.CONFIGURATION:
            later.setdefault(row.name, []).append(row.value)
    for name, values in later.items():
        shown = values if len(values) < MOST_VALUES else ["…", values[-1]]
        settings[name] = " → ".join([str(settings[name]), *shown])
    return settings


def _levels(values: list[float], counts: list[int] | None = None) -> Levels:
    if not values:
        return Levels(count=0, quantiles={})
    points = percentiles(values, LEVELS, counts=counts)
    named = {f"p{level}": point for level, point in zip(LEVELS, points, strict=True)}
    return Levels(count=len(values) if counts is None else sum(counts), quantiles=named | {"max": max(values)})


def _differences(a: Compared, b: Compared) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, levels in a.distributions.items():
        other = b.distributions[name].quantiles
        own = {level: other[level] - value for level, value in levels.quantiles.items() if level in other}
        if own:
            found[name] = own
    return found


# --- the drawing


def _bars(side: _Side, seconds: float) -> list[Bar]:
    """Those that hold a slot in the time that is drawn."""
    begin = side.begin / 1e6
    in_slots = (bar for bar in side.part.bars if bar.slot is not None and bar.start < begin + seconds)
    return sorted(in_slots, key=lambda bar: (bar.start, bar.slot or 0))[:MOST_DRAWN]


def _picture(side: _Side, bars: list[Bar], seconds: float, tenants: Mapping[str, str]) -> SlotPicture:
    """Coloured by tenant where the two runs have several, else by request, as the demo does."""
    begin, most = side.begin / 1e6, min(seconds, side.compared.seconds)
    requests = list(dict.fromkeys(bar.request_id for bar in bars))
    names, of_request = letters(requests), colours(requests)
    found = []
    for bar in bars:
        start, end = max(0.0, bar.start - begin), min(most, (begin + most if bar.end is None else bar.end) - begin)
        padding = next((since for phase, since, _ in bar.segments if phase == "padding"), None)
        found.append(
            DrawnBar(
                slot=bar.slot or 0,
                start=start,
                end=max(start, end),
                name=names[bar.request_id],
                about=f"{bar.request_id} ({bar.tenant}): {start:.2f} s to {end:.2f} s, {bar.state}",
                fill=tenants.get(bar.tenant) or of_request[bar.request_id],
                padding_from=None if padding is None else max(0.0, padding - begin),
                link=address_of(bar.request_id, side.compared.run_id),
            )
        )
    title = f"{side.compared.label} ({side.compared.run_id})"
    return SlotPicture(title=title, slots=side.compared.slots, seconds=most, bars=found)


def address_of(request_id: str, run_id: str) -> str:
    """Where the page shows a request."""
    return f"/#/request/{quote(request_id, safe='')}?run={quote(run_id, safe='')}"
