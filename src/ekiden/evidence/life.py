"""One request's life: the phases it went through, and the time in each split by what caused it.

Phases tile the time from arrival to end without gaps, and every phase's time is split without remainder, so the causes
exclude each other and add up to the end-to-end time. All times are whole microseconds of the run.

A turn's body is its time from start to end; the gap before it is the time since the turn before. Waiting is charged to
the reason that held at the boundary before; running to the request's own work, less what the step-time model owes to
other requests' prefill chunks in the same step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

from ekiden.evidence.reader import LedgerReader
from ekiden.ledger.records import (
    LEFT_OUT_REASONS,
    PAUSE_BITS,
    WAIT_REASONS,
    EndRow,
    EventKind,
    EventRow,
    RequestRow,
    TurnRow,
)
from ekiden.state.sequence import PauseReason
from ekiden.state.turn import LeftOutReason, WaitReason


class Cause(StrEnum):
    """Where a request's time went."""

    STEP_BOUNDARY = "step_boundary"
    SLOTS = "waiting_for_slot"
    KV_BLOCKS = "waiting_for_kv_blocks"
    BEHIND_REQUEST = "waiting_behind_request"
    TENANT_TURN = "waiting_for_tenants_turn"
    PRIORITY = "waiting_behind_priority"
    EARLIER_DEADLINE = "waiting_behind_earlier_deadline"
    BATCHING = "waiting_for_batching_policy"
    PREEMPTED_FIRST = "waiting_for_preempted"
    OWN_PREFILL = "own_prefill"
    OWN_DECODE = "own_decode"
    OTHERS_PREFILL = "others_prefill"
    SWAPPING = "others_swapping"
    INTER_TOKEN_TARGET = "held_back_by_inter_token_target"
    PREFIX_IN_FLIGHT = "held_back_for_shared_prefix"
    RUNNING_KV_BLOCKS = "held_back_by_kv_blocks"
    PREEMPTED = "preempted"
    RECOMPUTE = "recomputing_after_preemption"
    RESUMING = "waiting_to_resume"
    SLOW_READER = "slow_reader"
    OPERATOR_PAUSE = "paused_by_operator"
    HOST = "between_steps"
    UNRECORDED = "not_recorded"


WAIT_CAUSES = {
    WaitReason.SLOTS: Cause.SLOTS,
    WaitReason.KV_BLOCKS: Cause.BEHIND_REQUEST,
    WaitReason.PREEMPTED_FIRST: Cause.PREEMPTED_FIRST,
    WaitReason.BATCHING: Cause.BATCHING,
}
LEFT_OUT_CAUSES = {
    LeftOutReason.TOKEN_BUDGET: Cause.OTHERS_PREFILL,
    LeftOutReason.CONCURRENT_PREFILLS: Cause.OTHERS_PREFILL,
    LeftOutReason.INTER_TOKEN_TARGET: Cause.INTER_TOKEN_TARGET,
    LeftOutReason.KV_BLOCKS: Cause.RUNNING_KV_BLOCKS,
    LeftOutReason.PREFIX_IN_FLIGHT: Cause.PREFIX_IN_FLIGHT,
}
_ORDER_CAUSES = {"fair": Cause.TENANT_TURN, "priority": Cause.PRIORITY, "deadline": Cause.EARLIER_DEADLINE}
_OPERATOR = PAUSE_BITS[PauseReason.OPERATOR]


class Phase(Enum):
    WAITING = auto()
    PREFILL = auto()
    DECODE = auto()
    RECOMPUTE = auto()
    PREEMPTED = auto()
    RESUMING = auto()
    PAUSED = auto()


@dataclass(frozen=True, slots=True)
class Moment:
    """A point at which something happened to the request: the start (``late`` 0) or the end (1) of a turn."""

    turn: int
    late: int
    at: int


@dataclass(frozen=True, slots=True)
class Span:
    """A time in one phase. ``left_out``: a code of LEFT_OUT_CODES; ``blocked``: it did not fit; ``pauses``: bits."""

    phase: Phase
    begin: Moment
    end: Moment
    left_out: int = 0
    blocked: bool = False
    pauses: int = 0


@dataclass(slots=True)
class CauseTime:
    """The time owed to one cause, the turns it fell into, and what and who stood for it, by their time."""

    cause: Cause
    micros: int = 0
    first_turn: int = 0
    last_turn: int = 0
    turns: int = 0
    others: dict[int, int] = field(default_factory=dict)
    details: dict[str, int] = field(default_factory=dict)

    def add(
        self, micros: int, turn: int, last_turn: int | None = None, other: int | None = None, detail: str | None = None
    ) -> None:
        last_turn = turn if last_turn is None else last_turn
        self.micros += micros
        self.first_turn = min(self.first_turn or turn, turn)
        self.last_turn = max(self.last_turn, last_turn)
        self.turns += last_turn - turn + 1
        if other is not None:
            self.others[other] = self.others.get(other, 0) + micros
        if detail is not None:
            self.details[detail] = self.details.get(detail, 0) + micros


@dataclass(slots=True)
class Life:
    """``finished`` is False while the request is in the engine; its end is then the last stored turn's."""

    request: RequestRow
    end: EndRow | None
    events: list[EventRow]
    spans: list[Span]
    causes: dict[Cause, CauseTime]
    times: dict[int, tuple[int, int]]

    @property
    def e2e(self) -> int:
        return sum(cause.micros for cause in self.causes.values())

    @property
    def finished(self) -> bool:
        return self.end is not None


def life_of(reader: LedgerReader, request: RequestRow) -> Life:
    """Read a request's phases and split its time by cause."""
    events = reader.events(request.request)
    _, last_turn = reader.bounds()
    times = reader.times(sorted({request.turn, last_turn, *(event.turn for event in events)}))
    life = Life(request, reader.end(request.request), events, [], {}, times)
    if request.turn not in times:
        return life  # its turns are past the retention
    life.spans = list(_spans(life, Moment(last_turn, 1, times[last_turn][1])))
    splitter = _Splitter(reader, life)
    splitter.inbox(times[request.turn][0])
    for span in life.spans:
        splitter.split(span)
    life.causes = {cause: time for cause, time in splitter.causes.items() if time.micros}
    return life


def _spans(life: Life, now: Moment) -> Iterator[Span]:
    """The phases from the events, each one's end the next one's beginning."""
    start = Moment(life.request.turn, 0, life.times[life.request.turn][0])
    span = Span(Phase.WAITING, start, start)
    admitted = has_token = False
    for event in life.events:
        moment = Moment(event.turn, event.late, life.times[event.turn][event.late])
        kind, after = EventKind(event.kind), span
        phase, left_out, blocked, pauses = span.phase, span.left_out, span.blocked, span.pauses
        match kind:
            case EventKind.ADMITTED:
                phase, admitted, blocked = Phase.PREFILL, True, False
            case EventKind.FIRST_TOKEN:
                phase, has_token = Phase.DECODE, True
            case EventKind.CAUGHT_UP:
                phase = Phase.DECODE
            case EventKind.PREEMPTED:
                phase, left_out = Phase.PREEMPTED, 0
            case EventKind.RESUMED:
                whole = Phase.DECODE if event.value > 0 else Phase.RECOMPUTE
                phase = whole if has_token else Phase.PREFILL
            case EventKind.PAUSED:
                pauses, left_out = event.value, 0
                waits = Phase.RESUMING if admitted else Phase.WAITING
                phase = Phase.PAUSED if pauses else waits if phase is Phase.PAUSED else phase
            case EventKind.LEFT_OUT:
                left_out = event.value
            case EventKind.BLOCKED:
                blocked = bool(event.value)
            case EventKind.REFUSED | EventKind.ENDED:
                now = moment
                break
        after = Span(phase, moment, moment, left_out, blocked, pauses)
        if after != Span(span.phase, moment, moment, span.left_out, span.blocked, span.pauses):
            yield Span(span.phase, span.begin, moment, span.left_out, span.blocked, span.pauses)
            span = after
    yield Span(span.phase, span.begin, now, span.left_out, span.blocked, span.pauses)


def waiting_cause(
    reason: WaitReason, own: int, *, head: int | None, holder: int | None, blocked: bool, order: str
) -> tuple[Cause, int | None]:
    """What one request of the queue waits for, and the request that stands for it.

    ``reason`` holds ``head``, the first in line. ``holder`` is a later request that has a slot, ``order`` the
    scheduling policy; ``blocked``: it was looked at and did not fit.
    """
    if blocked or (reason is WaitReason.KV_BLOCKS and head == own):
        return Cause.KV_BLOCKS, None
    if order in _ORDER_CAUSES:  # whoever holds it up came later
        if reason is WaitReason.KV_BLOCKS and head is not None and head > own:
            return _ORDER_CAUSES[order], head
        if reason is WaitReason.SLOTS and holder is not None:
            return _ORDER_CAUSES[order], holder
    cause = WAIT_CAUSES[reason]
    return cause, head if cause is Cause.BEHIND_REQUEST else None


class _Splitter:
    """Charges each span's time to causes."""

    def __init__(self, reader: LedgerReader, life: Life) -> None:
        self._reader = reader
        self._request = life.request
        self._chunks = {event.turn: event.value for event in life.events if event.kind == EventKind.PREFILL}
        self._order = reader.header.scheduler.get("scheduling_policy", "fcfs")
        self.causes: dict[Cause, CauseTime] = {}

    def add(
        self,
        cause: Cause,
        micros: int,
        turn: int,
        last_turn: int | None = None,
        other: int | None = None,
        detail: str | None = None,
    ) -> None:
        if micros:
            self.causes.setdefault(cause, CauseTime(cause)).add(micros, turn, last_turn, other, detail)

    def inbox(self, start: int) -> None:
        """From arrival to the boundary at which intake took it: the step in progress had to end first."""
        arrival, turn = self._request.arrival, self._request.turn
        running = self._reader.turn(turn - 1)
        inside = 0
        if running is not None and running.took:
            inside = max(0, min(running.start + running.took, start) - max(running.start, arrival))
            self._step_in_progress(running, inside)
        self.add(Cause.STEP_BOUNDARY, start - arrival - inside, turn)

    def _step_in_progress(self, row: TurnRow, micros: int) -> None:
        """Time spent until a step ended: what its prefill chunks made of it is theirs."""
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
                cause = Cause.OPERATOR_PAUSE if span.pauses & _OPERATOR else Cause.SLOW_READER
                self._whole(span, cause)
            case Phase.PREEMPTED:
                self._whole(span, Cause.PREEMPTED)
            case Phase.RESUMING:
                self._whole(span, Cause.RESUMING)
            case Phase.RECOMPUTE:
                self._whole(span, Cause.RECOMPUTE)

    def _whole(self, span: Span, cause: Cause) -> None:
        self.add(cause, span.end.at - span.begin.at, span.begin.turn, max(span.begin.turn, span.end.turn))

    def _waiting(self, span: Span) -> None:
        """Each gap and body goes to the reason decided at the boundary before it."""
        first, last = span.begin.turn, span.end.turn
        overtaken = self._overtaken(span)
        before = self._reader.turn(first - 1)
        wait, head = (None, None) if before is None else (before.wait, before.head)
        at = span.begin.at
        for row in self._reader.turns(first, last):
            if row.turn > first:
                self._charge_wait(span, wait, head, row, row.start - at, overtaken, body=False)
                at = row.start
            if row.wait_start is not None:
                wait, head = row.wait_start, row.head_start
            if row.turn < last or span.end.late:
                end = row.start + row.took
                if end > at:
                    self._charge_wait(span, wait, head, row, end - at, overtaken, body=True)
                    at = end
            wait, head = row.wait, row.head
        self.add(Cause.UNRECORDED, span.end.at - at, last)

    def _charge_wait(
        self,
        span: Span,
        wait: int | None,
        head: int | None,
        row: TurnRow,
        micros: int,
        overtaken: "list[tuple[int, int, int]]",
        *,
        body: bool,
    ) -> None:
        turn, own = row.turn, self._request.request
        if wait is None:
            if body:
                self._step_in_progress(row, micros)
            else:
                self.add(Cause.STEP_BOUNDARY, micros, turn)
            return
        reason = WAIT_REASONS[wait]
        holder = _holder(overtaken, turn) if reason is WaitReason.SLOTS else None
        cause, other = waiting_cause(reason, own, head=head, holder=holder, blocked=span.blocked, order=self._order)
        self.add(cause, micros, turn, other=other)

    def _overtaken(self, span: Span) -> list[tuple[int, int, int]]:
        """Requests that came later and hold a slot meanwhile, which only an order other than arrival's lets happen."""
        if self._order not in _ORDER_CAUSES:
            return []
        later = self._reader.later_admitted(self._request.request, span.end.turn)
        return [held for held in later if held[2] >= span.begin.turn]

    def _prefill(self, span: Span) -> None:
        """Turns with a chunk are its own prefill, less other prompts' share of them; those without have a reason."""
        at = span.begin.at
        first, last = span.begin.turn, span.end.turn
        for row in self._reader.turns(first, last):
            if row.turn > first:
                self.add(Cause.HOST, row.start - at, row.turn)
                at = row.start
            inside = (row.turn > first or not span.begin.late) and (row.turn < last or span.end.late)
            if not inside:
                continue
            at = row.start + row.took
            chunk = self._chunks.get(row.turn, 0)
            if chunk:
                others = row.prefill_time * max(0, row.prefill_tokens - chunk) // max(1, row.prefill_tokens)
                swapping = max(0, min(row.took - row.p90, row.took - others)) if row.swapped else 0
                self.add(Cause.OTHERS_PREFILL, others, row.turn, detail="shared_steps")
                self.add(Cause.SWAPPING, swapping, row.turn)
                self.add(Cause.OWN_PREFILL, row.took - others - swapping, row.turn)
            elif span.left_out:
                self._left_out(span.left_out, row.took, row.turn, row.turn)
            else:
                self._step_in_progress(row, row.took)
        self.add(Cause.UNRECORDED, span.end.at - at, last)

    def _left_out(self, code: int, micros: int, first: int, last: int) -> None:
        reason = LEFT_OUT_REASONS[code]
        self.add(LEFT_OUT_CAUSES[reason], micros, first, last, detail=reason.value)

    def _decode(self, span: Span) -> None:
        """Sums over the span's steps: long answers have thousands of them."""
        first = span.begin.turn + span.begin.late
        last = span.end.turn if span.end.late else span.end.turn - 1
        total = span.end.at - span.begin.at
        if last < first:
            self.add(Cause.HOST, total, span.begin.turn)
            return
        sums = self._reader.sums(first, last)
        if span.left_out:
            self._left_out(span.left_out, sums.took, first, last)
        else:
            self.add(Cause.OTHERS_PREFILL, sums.prefill, first, last, detail="shared_steps")
            self.add(Cause.SWAPPING, sums.swapping, first, last)
            self.add(Cause.OWN_DECODE, sums.took - sums.prefill - sums.swapping, first, last)
        whole = sums.turns == last - first + 1
        self.add(Cause.HOST if whole else Cause.UNRECORDED, total - sums.took, first, last)


def _holder(overtaken: list[tuple[int, int, int]], turn: int) -> int | None:
    """One of the later requests that held a slot during a turn."""
    return next((request for request, begin, end in overtaken if begin < turn <= end), None)
