"""The state of a run as of its newest turn, and its last moments, from the ledger alone.

Rules: a view costs the same on a run of millions of turns; everything of one view is read in one snapshot; nothing is
kept between views.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from ekiden.evidence.breakdown import waiting_cause
from ekiden.evidence.causes import Cause
from ekiden.evidence.following import Following
from ekiden.evidence.live_rates import memory_of, pace_of, tenants_of
from ekiden.evidence.live_seen import Seen
from ekiden.evidence.live_slots import slots_of
from ekiden.evidence.live_view import Away, Control, LiveView, Queue, Waiting
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.timeline import RUNNING, Phase, Timeline
from ekiden.ledger.records import PAUSE_BITS, EndRow, TurnRow
from ekiden.ledger.retention import is_being_written

WINDOW_SECONDS = 10.0
SHOWN_WAITING = 12
SHOWN_AWAY = 12


def live_view(
    reader: LedgerReader,
    *,
    now: float | None = None,
    window_seconds: float = WINDOW_SECONDS,
    shown: int = SHOWN_WAITING,
) -> LiveView:
    """Look at a run, also while it is being written.

    ``now`` is Unix time; without it the view is taken at the end of the newest turn. ``shown`` bounds the list of those
    in line. An engine that has had no work has taken no turn: the view's ``turn`` is 0 then, and all is empty.
    Raises :class:`LedgerReadError` for a run that an earlier version recorded.
    """
    return look(reader, now=now, window_seconds=window_seconds, shown=shown).view


class Look(NamedTuple):
    """A view with what it was made of: the requests in the engine, and those that left it in the window, with
    their ends, by number; its turns, in order. ``now``: microseconds of the run."""

    view: LiveView
    live: list[Timeline]
    gone: list[Timeline]
    ends: dict[int, EndRow]
    turns: list[TurnRow]
    now: int


def look(
    reader: LedgerReader,
    *,
    now: float | None = None,
    window_seconds: float = WINDOW_SECONDS,
    shown: int = SHOWN_WAITING,
    known: Following | None = None,
) -> Look:
    """As :func:`live_view`, for who shows more of the same moment. ``known``: what an earlier look has read."""
    with reader.snapshot():
        seen = Seen(reader, now, window_seconds, known or Following())
        ends = {end.request: end for _, end in seen.ended}
        return Look(_view(seen, shown), seen.live, seen.gone, ends, seen.turns, seen.now)


def _view(seen: Seen, shown: int) -> LiveView:
    header, last = seen.reader.header, seen.last
    running = [one for one in seen.live if one.phase in RUNNING]
    waiting = [one for one in seen.live if one.phase is Phase.WAITING]
    tenants, others = tenants_of(seen)
    known = len(running) == last.running and len(waiting) == last.waiting
    whole = not seen.turns or len(seen.turns) == last.turn - seen.first_turn + 1
    return LiveView(
        run_id=header.run_id,
        model=header.model_id,
        version=header.version,
        lineage=header.lineage.digest,
        recording=is_being_written(seen.reader.path),
        turn=last.turn,
        age_seconds=seen.ago(last.end),
        window_seconds=seen.window_seconds,
        exact=known and whole,
        running=len(running),
        slots=slots_of(seen),
        queue=_queue(seen, waiting, shown),
        paused=sum(one.phase is Phase.PAUSED for one in seen.live),
        away=_away(seen),
        memory=memory_of(seen),
        pace=pace_of(seen),
        tenants=tenants,
        other_tenants=others,
        ended=_counted(end.reason for request, end in seen.ended if request.refusal is None),
        refused=_counted(request.refusal for request, _ in seen.ended if request.refusal is not None),
        controls=_controls(seen),
        order=seen.order,
        epoch=last.epoch or 0,
    )


def _queue(seen: Seen, waiting: list[Timeline], shown: int) -> Queue:
    if not waiting:
        return Queue()
    holders = [one.number for one in seen.live if one.phase in RUNNING or one.phase is Phase.PREEMPTED]
    newest_holder = max(holders, default=0)
    wait, head, order = seen.last.wait, seen.last.head, seen.order
    causes: dict[int, tuple[Cause, int | None]] = {}
    for one in waiting:  # as ``explain`` would charge the time from here on
        own, holder = one.number, newest_holder if newest_holder > one.number else None
        causes[own] = waiting_cause(wait, own, head=head, holder=holder, blocked=one.blocked, order=order)
    line = sorted(waiting, key=lambda one: (one.number != seen.last.head, not one.blocked, one.number))
    names = {one.number: one.request.request_id for one in seen.live}
    return Queue(
        waiting=len(waiting),
        by_cause=_counted(cause.value for cause, _ in causes.values()),
        oldest_seconds=seen.ago(min(one.request.arrival for one in waiting)),
        prompt_tokens=sum(one.request.prompt_tokens for one in waiting),
        first=[
            Waiting(
                request_id=one.request.request_id,
                tenant=one.request.tenant,
                prompt_tokens=one.request.prompt_tokens,
                seconds=seen.ago(one.request.arrival),
                cause=causes[one.number][0].value,
                behind=names.get(causes[one.number][1] or 0),
                passed_over=one.blocked,
            )
            for one in line[:shown]
        ],
    )


def _away(seen: Seen) -> list[Away]:
    found = [one for one in seen.live if one.phase in (Phase.PAUSED, Phase.RESUMING)]
    return [
        Away(
            request_id=one.request.request_id,
            tenant=one.request.tenant,
            why=[reason.value for reason, bit in PAUSE_BITS.items() if one.pauses & bit],
            output_tokens=seen.output[one.number],
        )
        for one in found[:SHOWN_AWAY]
    ]


def _controls(seen: Seen) -> list[Control]:
    """The rules in force. Pauses count while their requests are in the engine."""
    paused = {f"pause {one.request.request_id}" for one in seen.live if one.pauses}
    found = []
    for name, row in seen.reader.controls(seen.last.turn).items():
        if row.value not in ("off", "") and (not name.startswith("pause ") or name in paused):
            told = {"name": name, "value": row.value, "set_by": row.set_by, "who": row.who, "why": row.why}
            left = None if row.expires is None else max(0, row.expires - seen.now) / 1e6
            found.append(Control(**told, seconds=seen.ago(row.at), expires_in_seconds=left))
    return found


def _counted(names: Iterable[str | None]) -> dict[str, int]:
    """The most frequent first."""
    return {str(name): count for name, count in Counter(names).most_common()}
