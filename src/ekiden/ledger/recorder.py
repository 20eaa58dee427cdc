"""From an engine's turn to stored rows. It runs on the engine's thread, so it must be cheap and never wait.

What does not change is not written again: rows of one token are written when their list changes, reasons when they
begin and when they end. The engine's clock must read whole microseconds (:func:`whole_microseconds`), so that a
replay can repeat every reading exactly.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from ekiden.ledger.blobs import EndDetail, TurnDecisions, TurnInputs
from ekiden.ledger.details import end_detail, request_detail, stop_of
from ekiden.ledger.numbering import Events, Numbering
from ekiden.ledger.records import (
    NO_DRAFT_CODES,
    PAUSE_BITS,
    REFUSED,
    WAIT_CODES,
    ControlRow,
    EndRow,
    EventKind,
    RequestRow,
    Rows,
    TurnRow,
)
from ekiden.ledger.scheduling import Scheduling
from ekiden.state.controls import Controls, ControlValue, SetBy
from ekiden.state.policy import StepLoad
from ekiden.state.request import Finish, FinishReason, Refusal
from ekiden.state.sequence import Fault, PauseReason, Sequence, Stage
from ekiden.state.turn import Arrival, FormationOutcome, RefillOutcome, Turn

_UNSET_AT_FIRST: Final = frozenset({"epoch", "draining", "guard", "release"})
"""Fields of the controls that no configuration sets."""


def control_text(value: ControlValue) -> str:
    """A control's value as the ledger shows it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else str(value)


def whole_microseconds(clock: Callable[[], float]) -> Callable[[], float]:
    """A clock that rounds its readings to whole microseconds, so that the ledger holds them exactly."""
    return lambda: round(clock() * 1e6) / 1e6


class Recorder:
    """A :class:`ekiden.state.turn.TurnRecorder`. ``clock_base`` is where the run's microseconds begin.

    ``put`` takes the rows of one turn, and must return at once. ``keep_prompts`` stores prompts and outputs as token
    ids; otherwise only their digests are.
    """

    def __init__(
        self,
        put: Callable[[Rows], None],
        *,
        clock_base: int,
        block_size: int,
        prefix_caching: bool,
        keep_prompts: bool = False,
        controls: Controls | None = None,
    ) -> None:
        self._put = put
        self._base = clock_base
        self._block_size = block_size
        self._prefix_caching = prefix_caching
        self._keep_prompts = keep_prompts
        self._encode = msgspec.msgpack.Encoder().encode
        self._turn = 0
        self._numbering, self._events = Numbering(), Events()
        self._number, self._live = self._numbering.of, self._numbering.live
        self._scheduling = Scheduling(self._numbering, self._events)
        self._configured = controls
        self._wait: int | None = None
        self._head: int | None = None
        # The rows of the turn, made anew for each.
        self._ends: list[EndRow] = []
        self._requests: list[RequestRow] = []
        self._controls: list[ControlRow] = []

    def record(self, turn: Turn) -> None:
        """Make the rows of one turn and hand them on. When that fails, the turn is missing, and the next ones are
        recorded as they would have been."""
        self._turn += 1
        try:
            rows = self._rows_of(turn)
        except Exception:
            self._pass_over(turn)
            raise
        self._put(rows)

    def _pass_over(self, turn: Turn) -> None:
        """Keep count of the requests of a turn that could not be recorded."""
        for arrival in turn.arrivals:
            sequence = arrival.outcome
            if isinstance(sequence, Sequence) and sequence not in self._number:
                self._numbering.arrived(sequence)
        for update in (*turn.ended_at_start, *turn.updates):
            if update.finish is not None and (ended := self._live.pop(update.request_id, None)) is not None:
                self._forget(ended)

    def _forget(self, sequence: Sequence) -> None:
        self._scheduling.forget(sequence)
        self._numbering.ended(sequence)

    def _rows_of(self, turn: Turn) -> Rows:
        self._ends, self._requests, self._controls = [], [], []
        self._events.begin(self._turn)
        start, end = self._micros(turn.start), self._micros(turn.end)
        inputs = TurnInputs()
        self._note_controls(turn, start)
        if turn.arrivals or turn.aborts or turn.pauses or turn.ended_at_start or turn.pauses_applied:
            self._inbox(turn, start, inputs)
        inputs.controls = turn.control_changes
        inputs.drafts = self._scheduling.guessed(turn)
        inputs.failure = turn.failure
        if turn.output is not None:  # what stage 3 measured
            timing = turn.output.timing
            inputs.advance_start = round((timing.started - turn.start) * 1e6)
            inputs.advance, inputs.model = round(timing.total * 1e6), round(timing.model * 1e6)
            inputs.sampling = round(timing.sampling * 1e6)
            inputs.passes, inputs.padding_rows = turn.output.passes, turn.output.padding_rows
            inputs.attempts = turn.output.attempts
        decisions = self._decide(turn, end, inputs)
        row = self._turn_row(turn, start, end, inputs, decisions)
        self._numbering.end_turn()
        self._ends.sort()  # as they are read back
        return Rows(row, self._events.rows, self._requests, self._ends, self._controls)

    def _micros(self, seconds: float) -> int:
        return round(seconds * 1e6) - self._base

    def _note_controls(self, turn: Turn, start: int) -> None:
        if self._configured is not None:
            for name, value in msgspec.structs.asdict(self._configured).items():
                if name not in _UNSET_AT_FIRST and (name != "tenants" or value):
                    row = ControlRow(self._turn, start, name, control_text(value), SetBy.CONFIGURATION.value, "")
                    self._controls.append(row)
            self._configured = None
        for name, old, new, change in turn.set_fields:
            expires = None if change.expires_at is None else self._micros(change.expires_at)
            value, before = control_text(new), control_text(old)
            self._controls.append(
                ControlRow(self._turn, start, name, value, change.set_by.value, change.who, change.why, before, expires)
            )

    # --- stage 1: arrivals, cancellations and pauses

    def _inbox(self, turn: Turn, start: int, inputs: TurnInputs) -> None:
        for arrival in turn.arrivals:
            self._arrived(arrival, start)
        numbers, live = self._number, self._live
        inputs.arrivals = len(turn.arrivals)
        inputs.aborts = [numbers[live[name]] for name in turn.aborts if name in live]
        inputs.pauses = [
            (numbers[live[change.request_id]], PAUSE_BITS[change.reason], change.paused, change.by)
            for change in turn.pauses
            if change.request_id in live
        ]
        for name, reasons, change in turn.pauses_applied:
            number = numbers[live[name]]
            self._events.add(number, EventKind.PAUSED, sum(PAUSE_BITS[reason] for reason in reasons))
            person = change.reason is PauseReason.OPERATOR
            set_by, who = (SetBy.PERSON if person else SetBy.SOFTWARE_RULE), change.by or change.reason.value
            state = control_text(change.paused)
            self._controls.append(ControlRow(self._turn, start, f"pause {name}", state, set_by.value, who))
        for update in turn.ended_at_start:
            if update.finish is not None:
                self._ended(update.request_id, update.finish, start, late=0)

    def _arrived(self, arrival: Arrival, start: int) -> None:
        request, outcome = arrival.request, arrival.outcome
        number = self._numbering.arrived(outcome if isinstance(outcome, Sequence) else None)
        if isinstance(outcome, Sequence):
            if request.carried is None:
                self._events.add(number, EventKind.ARRIVED)
            else:
                self._events.add(number, EventKind.CARRIED, len(request.carried.token_ids))
        else:
            self._events.add(number, EventKind.REFUSED)
            refused = self._encode(EndDetail(output_digest=b"", message=outcome.message))
            e2e = start - self._micros(request.arrival_time)
            self._ends.append(EndRow(number, self._turn, start, e2e, REFUSED, 0, 0, 0, None, None, 0, refused))
        self._requests.append(
            RequestRow(
                number,
                request.request_id,
                request.tenant,
                self._turn,
                self._micros(request.arrival_time),
                len(request.prompt_token_ids),
                outcome.max_total_tokens - outcome.num_prompt_tokens if isinstance(outcome, Sequence) else 0,
                request.priority,
                outcome.reason.value if isinstance(outcome, Refusal) else None,
                self._encode(request_detail(arrival, self._block_size, self._prefix_caching, self._keep_prompts)),
                None if request.carried is None else len(request.carried.token_ids),
            )
        )

    # --- stages 2 to 5

    def _decide(self, turn: Turn, end: int, inputs: TurnInputs) -> TurnDecisions:
        """What was decided; the answers that the model's tokens ended are added to the inputs."""
        number, formed = self._number, turn.formed
        at_start, at_end = turn.refilled_at_start, turn.refilled
        made = TurnDecisions(admitted_start=self._scheduling.admitted(at_start, late=0))
        made.resumed_start = self._scheduling.resumed(at_start, late=0)
        if formed is not None:
            rows = formed.plan.rows
            made.decodes, made.prefills = self._scheduling.rows(formed)
            made.left_out = self._scheduling.left_out(formed)
            made.victims = self._scheduling.victims(formed)
            made.drafts = [
                (number[formed.sequences[i]], rows[i].num_drafts) for i in formed.guesses if rows[i].num_drafts
            ]
            made.no_drafts = [(number[each], NO_DRAFT_CODES[why] if why else 0) for each, why in formed.no_drafts]
            inputs.micros_per_draft = formed.micros_per_draft
            made.swap_out, made.swap_in, made.budget = formed.plan.swap_out, formed.plan.swap_in, formed.token_budget
            if turn.output is not None:
                self._scheduling.first_tokens(formed, turn.end)
        for update in turn.updates:
            if update.finish is not None:
                sequence = self._live[update.request_id]
                if sequence.fault is not None:
                    inputs.faults.append((number[sequence], self._stage_of_fault(sequence, sequence.fault, formed)))
                elif turn.output is not None and sequence.finish_reason is not FinishReason.LENGTH:
                    inputs.stops.append((number[sequence], stop_of(sequence)))
                made.retired.append((number[sequence], update.finish.num_blocks))
                self._ended(update.request_id, update.finish, end, late=1)
        made.resumed = self._scheduling.resumed(at_end, late=1)
        made.admitted = self._scheduling.admitted(at_end, late=1)
        made.passed_over = self._scheduling.passed_over(at_end or at_start)
        return made

    def _stage_of_fault(self, sequence: Sequence, fault: Fault, formed: FormationOutcome | None) -> int:
        """The first stage that was without what the sequence was to bring: a row whose drafts failed is computed."""
        in_step = formed is not None and sequence in formed.sequences
        return (Stage.ADVANCE if in_step and fault.stage is Stage.FORMATION else fault.stage).value

    def _ended(self, request_id: str, finish: Finish, at: int, *, late: int) -> None:
        sequence = self._live.pop(request_id)
        number = self._number[sequence]
        self._forget(sequence)
        self._events.add(number, EventKind.ENDED, int(sequence.fault is not None), late=late)
        self._ends.append(
            EndRow(
                number,
                self._turn,
                at,
                at - self._micros(finish.arrival_time),
                finish.reason.value,
                finish.num_output_tokens,
                finish.num_cached_tokens,
                finish.num_preemptions,
                None if finish.admitted_time is None else self._micros(finish.admitted_time),
                None if finish.first_token_time is None else self._micros(finish.first_token_time),
                finish.num_blocks,
                self._encode(end_detail(sequence, finish, self._keep_prompts)),
            )
        )

    def _turn_row(self, turn: Turn, start: int, end: int, inputs: TurnInputs, decisions: TurnDecisions) -> TurnRow:
        load, predicted = turn.formed.load if turn.formed else StepLoad(), turn.predicted
        at_start, last = turn.refilled_at_start, turn.refilled or turn.refilled_at_start
        wait, head = (self._wait, self._head) if last is None else self._held_back(last)
        wait_start, head_start = (None, None) if at_start is None else self._held_back(at_start)
        self._wait, self._head = wait, head
        took = end - start
        return TurnRow(
            turn=self._turn,
            start=start,
            took=took,
            wait_start=wait_start,
            head_start=head_start,
            wait=wait,
            head=head,
            waiting=turn.num_waiting,
            running=turn.num_running,
            free_blocks=turn.num_free_blocks,
            decode_rows=load.decode_rows,
            decode_context=load.decode_context,
            prefill_tokens=load.prefill_tokens,
            prefill_pairs=load.prefill_pairs,
            p10=0 if predicted is None else round(predicted.p10 * 1e6),
            p50=0 if predicted is None else round(predicted.p50 * 1e6),
            p90=0 if predicted is None else round(predicted.p90 * 1e6),
            prefill_time=round(took * turn.prefill_share),
            swapped=len(decisions.swap_out) + len(decisions.swap_in),
            tokens=sum([len(update.token_ids) for update in turn.updates]),
            inputs=self._encode(inputs),
            decisions=self._encode(decisions),
            epoch=turn.epoch,
            new_sizes=0 if turn.output is None else turn.output.new_sizes,
        )

    def _held_back(self, outcome: RefillOutcome) -> tuple[int | None, int | None]:
        head = outcome.head
        return WAIT_CODES[outcome.wait_reason], None if head is None else self._number.get(head)
