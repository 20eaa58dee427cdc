"""A part of a run: what was in the slots and in the queue, the curves, and what was changed meanwhile."""

from collections.abc import Sequence
from typing import Final

from ekiden.dashboard.part import Part, curves, read_part, waits_of
from ekiden.dashboard.shapes import Changes, ControlSet, Gap, Period, Waited
from ekiden.evidence.reader import LedgerReader
from ekiden.ledger.records import ControlRow
from ekiden.ledger.retention import is_being_written
from ekiden.state.controls import SetBy

MOST_POINTS: Final = 600
LEAST_POINT: Final = 1_000_000
"""Microseconds of the narrowest point: a rate over less would show a single prompt as thousands of tokens a second."""
MOST_WAITS: Final = 2_000
MOST_BARS: Final = 3_000
_MOST_CONTROLS: Final = 500
_DEFAULT_SECONDS: Final = 60.0


def period(reader: LedgerReader, since: float | None, until: float | None) -> Period:
    """Seconds of the run; without ``until`` up to its newest turn, without ``since`` the minute before that."""
    with reader.snapshot():
        return _period(reader, since, until)


def _period(reader: LedgerReader, since: float | None, until: float | None) -> Period:
    first, last = reader.bounds()
    newest = reader.turn(last)
    run_end = 0 if newest is None else newest.end
    high = run_end if until is None else round(until * 1e6)
    low = max(0, high - round(_DEFAULT_SECONDS * 1e6)) if since is None else round(since * 1e6)
    part = read_part(reader, low, high)
    width = max(LEAST_POINT, -(-(high - low) // MOST_POINTS))
    count = max(0, -(-(high - low) // width))
    oldest = reader.turn(first)
    changes = _changes(reader, low, high + 1)
    return Period(
        run_id=reader.header.run_id,
        started=reader.header.started,
        start=low / 1e6,
        end=high / 1e6,
        run_start=0.0 if oldest is None else oldest.start / 1e6,
        run_end=run_end / 1e6,
        recording=is_being_written(reader.path),
        slots=slots_at(reader, part),
        bars=sorted(part.bars, key=lambda bar: bar.start)[-MOST_BARS:],
        series=curves(part, reader, low, width, count) if count else [],
        queue=_queue(part, low, high),
        controls=[as_control(row) for row in changes if row.name != "guard"],
        guard=_of_guard(changes),
        gaps=[
            Gap(start=begin / 1e6, end=end / 1e6, turns=turns)
            for begin, end, turns in part.rows.gaps(part.first, part.last)
        ],
        whole=part.whole and len(part.bars) <= MOST_BARS,
    )


def changes_of(reader: LedgerReader) -> Changes:
    """All that was changed in the run so far; the newest :data:`_MOST_CONTROLS` of it."""
    with reader.snapshot():
        newest = reader.turn(reader.bounds()[1])
        rows = [] if newest is None else _changes(reader, 0, newest.end + 1)
    return Changes(started=reader.header.started, controls=[as_control(row) for row in rows if row.name != "guard"])


def _changes(reader: LedgerReader, low: int, high: int) -> list[ControlRow]:
    """What persons and the guard set in ``[low, high)`` microseconds of the run."""
    rows = [row for row in reader.controls_between(low, high) if row.set_by != SetBy.CONFIGURATION]
    return rows[-_MOST_CONTROLS:]


def slots_at(reader: LedgerReader, part: Part) -> int:
    """As many rows as a chart of the part needs: the most slots that there were to be, or that were held."""
    history = reader.history("max_num_seqs")
    then = [
        int(value) for turn, value in zip(history.turns, history.values, strict=True) if part.first < turn <= part.last
    ]
    held = [bar.slot + 1 for bar in part.bars if bar.slot is not None]
    return max([int(history.at(part.first)), *then, *held])


def _queue(part: Part, low: int, high: int) -> list[Waited]:
    waits = [
        Waited(request_id=one.request.request_id, tenant=one.request.tenant, start=start, end=end)
        for one, start, end in waits_of(part, low, high)
    ]
    return sorted(waits, key=lambda wait: wait.start)[-MOST_WAITS:]


def as_control(row: ControlRow) -> ControlSet:
    return ControlSet(
        at=row.at / 1e6,
        name=row.name,
        value=row.value,
        old=row.old,
        set_by=row.set_by,
        who=row.who,
        why=row.why,
        expires=None if row.expires is None else row.expires / 1e6,
    )


def _of_guard(rows: Sequence[ControlRow]) -> list[ControlSet]:
    """What the guard decided, and what persons did to it: changes that it made, and the words on its rungs."""
    return [as_control(row) for row in rows if row.name == "guard" or row.who.startswith("guard")]
