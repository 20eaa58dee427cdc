"""One request's time, split by what caused it.

The spans of its timeline cover the time from arrival to end without gaps, and each span's time is split without
remainder, so the causes exclude each other and add up to the end-to-end time. All times are whole microseconds of the
run.

A turn's body is its time from start to end; the gap before it is the time since the turn before. Waiting is charged to
the reason that was found at the end of the turn before; running to the request's own work, less what the step-time
model says that other requests' prefill chunks cost in the same step.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ekiden.config import ORDERS
from ekiden.evidence.causes import Cause
from ekiden.evidence.reader import Event, LedgerReader
from ekiden.evidence.timeline import Moment, Phase, Span, Timeline
from ekiden.ledger.records import LEFT_OUT_REASONS, PAUSE_BITS, WAIT_REASONS, EndRow, RequestRow, TurnRow
from ekiden.state.sequence import PauseReason
from ekiden.state.turn import LeftOutReason, WaitReason

_WAIT_CAUSES = {
    WaitReason.SLOTS: Cause.SLOTS,
    WaitReason.KV_BLOCKS: Cause.BEHIND_REQUEST,
    WaitReason.PREEMPTED_FIRST: Cause.PREEMPTED_FIRST,
    WaitReason.BATCHING: Cause.BATCHING,
}
_LEFT_OUT_CAUSES = {
    LeftOutReason.TOKEN_BUDGET: Cause.OTHERS_PREFILL,
    LeftOutReason.CONCURRENT_PREFILLS: Cause.OTHERS_PREFILL,
    LeftOutReason.INTER_TOKEN_TARGET: Cause.INTER_TOKEN_TARGET,
    LeftOutReason.KV_BLOCKS: Cause.RUNNING_KV_BLOCKS,
    LeftOutReason.PREFIX_IN_FLIGHT: Cause.PREFIX_IN_FLIGHT,
}
_ORDER_CAUSES = {"fair": Cause.TENANT_TURN, "priority": Cause.PRIORITY, "deadline": Cause.EARLIER_DEADLINE}
assert _ORDER_CAUSES.keys() == set(ORDERS) - {"fcfs"}, "an order that lets later requests join first has no cause"
_OPERATOR = PAUSE_BITS[PauseReason.OPERATOR]


@dataclass(slots=True)
class CauseTime:
    """The time owed to one cause and the turns it fell into; how much of it each other request and detail explains."""

    cause: Cause
    micros: int = 0
    first_turn: int = 0
    last_turn: int = 0
    turns: int = 0
    others: Counter[int] = field(default_factory=Counter)
    details: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Breakdown:
    """A request with its events and causes. There are no causes when its first turns are past the retention.

    ``end`` is None while the request is in the engine; its time then goes to the end of the last stored turn.
    """

    request: RequestRow
    end: EndRow | None
    events: list[Event]
    timeline: Timeline
    causes: list[CauseTime]
    """The largest first."""

    @property
    def e2e(self) -> int:
        return sum(cause.micros for cause in self.causes)


def breakdown(reader: LedgerReader, request: RequestRow) -> Breakdown:
    """Read a request's events and split its time by cause."""
    events, timeline = reader.events(request.request), Timeline(request)
    for event in events:
        timeline.take(event)
    found = Breakdown(request, reader.end(request.request), events, timeline, [])
    first, last = reader.turn(request.turn), reader.turn(reader.bounds()[1])
    if first is not None and last is not None:
        splitter = _Splitter(reader, timeline)
        splitter.inbox(first.start)
        for span in timeline.spans_until(Moment(last.turn, 1, last.end)):
            splitter.split(span)
        if found.end is not None and timeline.open:  # its engine died, and what it did last is lost
            splitter.add(Cause.UNRECORDED, max(0, found.end.at - last.end), last.turn)
        found.causes = sorted(splitter.causes.values(), key=lambda cause: -cause.micros)
    return found


def waiting_cause(
    wait: int | None, own: int, *, head: int | None, holder: int | None, blocked: bool, order: str
) -> tuple[Cause, int | None]:
    """What one request of the queue waits for, and the request that it waits for, where there is one.

    ``wait`` is the code of the reason that holds ``head``, the first in line, or None when only the step in progress
    does. ``holder`` is a later request that has a slot, ``order`` the scheduling policy; ``blocked``: it was looked at
    and did not fit.
    """
    if wait is None:
        return Cause.STEP_BOUNDARY, None
    reason = WAIT_REASONS[wait]
    if blocked or (reason is WaitReason.KV_BLOCKS and head == own):
        return Cause.KV_BLOCKS, None
    if order in _ORDER_CAUSES:  # the requests that hold it up came later
        if reason is WaitReason.KV_BLOCKS and head is not None and head > own:
            return _ORDER_CAUSES[order], head
        if reason is WaitReason.SLOTS and holder is not None:
            return _ORDER_CAUSES[order], holder
    cause = _WAIT_CAUSES[reason]
    return cause, head if cause is Cause.BEHIND_REQUEST else None


class _Splitter:
    """Charges each span's time to causes."""

    def __init__(self, reader: LedgerReader, timeline: Timeline) -> None:
        self._reader = reader
        self._request = timeline.request
        self._chunks = timeline.chunks
        self._preempted = timeline.preempted_turns
        self._orders = reader.history("scheduling_policy")
        self.causes: dict[Cause, CauseTime] = {}

    def add(
        self, cause: Cause, micros: int, turn: int, last: int = 0, *, other: int | None = None, detail: str = ""
    ) -> None:
        """Charge time of one turn, or of the turns up to ``last``."""
        if not micros:
            return
        time, last = self.causes.setdefault(cause, CauseTime(cause, first_turn=turn)), last or turn
        time.micros += micros
        time.first_turn, time.last_turn = min(time.first_turn, turn), max(time.last_turn, last)
        time.turns += last - turn + 1
        if other is not None:
            time.others[other] += micros
        if detail:
            time.details[detail] += micros

    def inbox(self, start: int) -> None:
        """From arrival to the start of the turn that took it in: the step in progress had to end first, or another
        engine."""
        arrival, turn = self._request.arrival, self._request.turn
        if self._request.carried is not None:
            self.add(Cause.EARLIER_ENGINE, start - arrival, turn)
            return
        running = self._reader.turn(turn - 1)
        inside = 0
        if running is not None and running.took:
            inside = max(0, min(running.end, start) - max(running.start, arrival))
            self._step_in_progress(running, inside)
        self.add(Cause.STEP_BOUNDARY, start - arrival - inside, turn)

    def _step_in_progress(self, row: TurnRow, micros: int) -> None:
        """Time spent until a step ended: the part that its prefill chunks cost is charged to them."""
        others = micros * row.prefill_time // row.took if row.took else 0
        self.add(Cause.OTHERS_PREFILL, others, row.turn, detail="step_in_progress")
        self.add(Cause.STEP_BOUNDARY, micros - others, row.turn)

    def split(self, span: Span) -> None:
        match span.phase:
            case Phase.WAITING:
                self._waiting(span)
            case Phase.PREFILL:
                self._prefill(span)
            case Phase.DECODE:
                self._decode(span)
            case Phase.PAUSED:
                self._whole(span, Cause.OPERATOR_PAUSE if span.pauses & _OPERATOR else Cause.SLOW_READER)
            case Phase.RECOMPUTE if self._catches_up(span):
                self._whole(span, Cause.CATCHING_UP)
            case phase:  # preempted, resuming or recomputing
                self._whole(span, Cause[phase.name])

    def _catches_up(self, span: Span) -> bool:
        """Whether it computes what an earlier engine had computed: it has been preempted neither before nor since."""
        preempted = self._preempted
        return self._request.carried is not None and not (preempted and preempted[0] <= span.begin.turn)

    def _whole(self, span: Span, cause: Cause) -> None:
        self.add(cause, span.end.at - span.begin.at, span.begin.turn, span.end.turn)

    def _turns(self, span: Span) -> Iterator[tuple[TurnRow, int, int]]:
        """The turns of a span, each with how much of the gap before it and of its body belongs to the span."""
        first, last, at = span.begin.turn, span.end.turn, span.begin.at
        for row in self._reader.turns(first, last):
            gap = row.start - at if row.turn > first else 0
            body = row.end - at - gap if row.turn < last or span.end.late else 0
            at += gap + body
            yield row, gap, body
        self.add(Cause.UNRECORDED, span.end.at - at, last)

    def _waiting(self, span: Span) -> None:
        """Each gap and body goes to the reason that was found before it."""
        overtaken = self._overtaken(span)
        before = self._reader.turn(span.begin.turn - 1)
        wait, head = (None, None) if before is None else (before.wait, before.head)

        def cause(turn: int) -> tuple[Cause, int | None]:
            holder = next((request for request, begin, end in overtaken if begin < turn <= end), None)
            own = self._request.request
            return waiting_cause(wait, own, head=head, holder=holder, blocked=span.blocked, order=self._orders.at(turn))

        for row, gap, body in self._turns(span):
            why, other = cause(row.turn)
            self.add(why, gap, row.turn, other=other)
            if row.wait_start is not None:
                wait, head = row.wait_start, row.head_start
            why, other = cause(row.turn)
            if why is Cause.STEP_BOUNDARY:
                self._step_in_progress(row, body)
            else:
                self.add(why, body, row.turn, other=other)
            wait, head = row.wait, row.head

    def _overtaken(self, span: Span) -> list[tuple[int, int, int]]:
        """Requests that came later and hold a slot meanwhile, which only an order other than arrival's lets happen."""
        if _ORDER_CAUSES.keys().isdisjoint(self._orders.values):
            return []
        later = self._reader.later_admitted(self._request.request, span.end.turn)
        return [held for held in later if held[2] >= span.begin.turn]

    def _prefill(self, span: Span) -> None:
        """Turns with a chunk are its own prefill, less other prompts' share of them; those without have a reason."""
        for row, gap, body in self._turns(span):
            self.add(Cause.HOST, gap, row.turn)
            if not body:
                continue
            if chunk := self._chunks.get(row.turn):
                others = row.prefill_time * max(0, row.prefill_tokens - chunk) // max(1, row.prefill_tokens)
                swapping = max(0, min(row.took - row.p90, row.took - others)) if row.swapped else 0
                self.add(Cause.OTHERS_PREFILL, others, row.turn, detail="shared_steps")
                self.add(Cause.SWAPPING, swapping, row.turn)
                self.add(Cause.OWN_PREFILL, body - others - swapping, row.turn)
            elif span.left_out:
                self._left_out(span.left_out, body, row.turn)
            else:
                self._step_in_progress(row, body)

    def _left_out(self, code: int, micros: int, first: int, last: int = 0) -> None:
        reason = LEFT_OUT_REASONS[code]
        self.add(_LEFT_OUT_CAUSES[reason], micros, first, last, detail=reason.value)

    def _decode(self, span: Span) -> None:
        """Sums over the span's steps: long answers have thousands of them."""
        first = span.begin.turn + span.begin.late
        last = span.end.turn if span.end.late else span.end.turn - 1
        total = span.end.at - span.begin.at
        if last < first:
            self.add(Cause.HOST, total, span.begin.turn)
            return
        turns, took, prefill, swapping = self._reader.sums(first, last)
        if span.left_out:
            self._left_out(span.left_out, took, first, last)
        else:
            self.add(Cause.OTHERS_PREFILL, prefill, first, last, detail="shared_steps")
            self.add(Cause.SWAPPING, swapping, first, last)
            self.add(Cause.OWN_DECODE, took - prefill - swapping, first, last)
        whole = turns == last - first + 1
        self.add(Cause.HOST if whole else Cause.UNRECORDED, total - took, first, last)
