"""The bars and curves of a part of a run, from its ledger."""

from typing import Final, NamedTuple

from ekiden.dashboard.bars import all_bars
from ekiden.dashboard.padding import Padding
from ekiden.dashboard.series import named_few, points, tenants_tokens
from ekiden.dashboard.shapes import Bar, Point
from ekiden.evidence.period_rows import PeriodRows, StepOf
from ekiden.evidence.places import admitted_slots
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.timeline import Moment, Phase, Timeline, timelines
from ekiden.ledger.records import EndRow

MOST_REQUESTS: Final = 3_000
_MOST_FIRSTS: Final = 20_000


class Part(NamedTuple):
    """``requests``: those that were in the engine then; ``whole``: whether these are all, else the newest. ``slots``:
    what their admissions gave, by number."""

    rows: PeriodRows
    first: int
    last: int
    requests: list[Timeline]
    ends: dict[int, EndRow]
    slots: dict[int, int]
    bars: list[Bar]
    whole: bool


def read_part(reader: LedgerReader, since: int, until: int, *, most: int = MOST_REQUESTS) -> Part:
    """What was in the slots in ``(since, until]``, in microseconds of the run. Call it inside a snapshot."""
    rows = PeriodRows(reader)
    first, last = rows.turns_of(since, until)
    last = max(last, min(first, rows.last))
    found, whole = rows.requests(first, last, most) if rows.last else ([], True)
    numbers = [request.request for request in found]
    there = timelines(found, reader.events_after(numbers, 0))
    ends, slots = rows.ends(numbers), admitted_slots(reader, there)
    now = Moment(rows.last, 1, rows.end_of(rows.last))
    padding = Padding(reader, rows, there)
    low, high = since / 1e6, until / 1e6
    bars = [
        bar
        for bar in all_bars(there, slots, ends, now, padding)
        if bar.start <= high and (bar.end is None or bar.end >= low)
    ]
    return Part(rows, first, last, there, ends, slots, bars, whole)


def curves(part: Part, reader: LedgerReader, since: int, width: int, count: int) -> list[Point]:
    """The points of a part that was read. Call it inside the same snapshot."""
    rows = part.rows
    first, last = rows.turns_of(since, since + width * count)
    steps, stride = rows.steps(first, last) if first <= last else ([], 1)
    before = reader.turn(first - 1)
    firsts = rows.first_tokens(first, since, since + width * count, _MOST_FIRSTS)
    for one in part.requests:
        at = one.first_token.at if one.first_token is not None else None
        if at is not None and one.number not in part.ends and since < at <= since + width * count:
            firsts.append((at, at - one.request.arrival))
    whole = part.whole and stride == 1
    return points(
        steps,
        firsts,
        since=since,
        width=width,
        count=count,
        blocks=reader.header.num_blocks,
        before=None if before is None else StepOf.of(before, None),
        sums=None if stride == 1 else rows.sums(first, last, since, width),
        tenants=tenants_tokens(part.requests, steps, since=since, width=width, count=count)
        if whole
        else named_few(rows.tenants_of_ended(first, last, since, width)),
    )


def waits_of(part: Part, since: int, until: int) -> list[tuple[Timeline, float, float | None]]:
    """Who waited in the queue: from when until when; None for who waits still."""
    found = []
    for one in part.requests:
        arrival, end = one.request.arrival, part.ends.get(one.number)
        joined = one.admitted.at if one.admitted is not None else None if end is None else end.at
        if one.request.carried is None and arrival <= until and (joined is None or joined >= since):
            still = joined is None and one.phase is not Phase.WAITING
            found.append((one, arrival / 1e6, None if joined is None or still else joined / 1e6))
    return found
