"""What comes to an engine from outside: requests, refusals to be noted, cancellations, pauses, changes of the controls.

They are put in at any time (by the thread that drives the engine) and applied only at the boundary between steps, with
what time itself does there: controls that expire, and deadlines.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ekiden.engine.totals import Totals
from ekiden.engine.wiring import Shared, Stages
from ekiden.policies.ordering import make_waiting_queue, same_order
from ekiden.state.controls import ControlChange, Controls, ControlState, InvalidControls, SetField
from ekiden.state.plan import BlockCopy
from ekiden.state.request import FinishReason, Refusal, RefusedCall, Request, RequestUpdate
from ekiden.state.sequence import Sequence
from ekiden.state.turn import Arrival, Pause, Turn

ControlsAnswer = Callable[[ControlState | str], None]
"""Takes the controls that are in force after a change, or why it was refused."""

MAX_NOTED_REFUSALS: Final = 32
"""Most refusals of the HTTP layer that one turn records; more than that are counted and not recorded."""


class AskedChange(NamedTuple):
    change: ControlChange
    answer: ControlsAnswer | None


@dataclass(slots=True, eq=False)
class Inbox:
    """``swap_out`` and ``just_paused``: the sequences that were paused at a boundary and whose blocks the next step is
    to move."""

    shared: Shared
    stages: Stages
    totals: Totals
    arrivals: deque[Request | RefusedCall | AskedChange] = field(default_factory=deque)
    """In the order in which they came, so that a request that came before a drain is accepted."""
    aborts: list[tuple[str, str | None]] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    swap_out: list[BlockCopy] = field(default_factory=list)
    just_paused: list[Sequence] = field(default_factory=list)
    _num_noted: int = 0
    _held_pauses: list[Pause] = field(default_factory=list)
    """Pauses that could not be applied at the last boundary."""

    def note_refusal(self, refused: RefusedCall) -> None:
        """Record what the HTTP layer refused, as an arrival that intake had refused for the same reason."""
        if self._num_noted < MAX_NOTED_REFUSALS:
            self._num_noted += 1
            self.arrivals.append(refused)
        else:
            self.totals.count_refusal(refused.request, refused.refusal)

    def swapped(self) -> None:
        """The blocks of those who were paused have moved, or are lost."""
        self.swap_out, self.just_paused = [], []

    def apply(self, turn: Turn, resumed: list[Sequence]) -> list[RequestUpdate]:
        """Apply everything. ``resumed``: the sequences whose blocks are on their way back."""
        updates, now = turn.ended_at_start, turn.start
        population, abstention = self.shared.population, self.stages.abstention
        abstention.begin_turn()
        before, expired = self.shared.controls.now, self.shared.controls.expire(now)
        if expired:
            self._obey_controls(expired, before, turn)
        while self.arrivals:
            self._take_in(self.arrivals.popleft(), turn)
        self._num_noted = 0
        aborts, self.aborts = self.aborts, []
        turn.aborts = [request_id for request_id, _ in aborts]
        for request_id, why in aborts:
            if sequence := population.by_id.get(request_id):
                updates.append(self._end(sequence, FinishReason.ABORT, now, why))
        turn.pauses, self.pauses = self.pauses, []
        held, self._held_pauses = self._held_pauses, []
        for change in held + turn.pauses:
            self._apply_pause(change, turn, resumed)
        deadline = "the request's deadline has passed"
        updates += [self._end(each, FinishReason.DEADLINE, now, deadline) for each in population.expired(now)]
        updates += [self._end(each, FinishReason.ABSTAINED, now, words) for each, words in abstention.hopeless(now)]
        self.totals.count_ends(updates)
        return updates

    def _end(self, sequence: Sequence, reason: FinishReason, now: float, why: str | None) -> RequestUpdate:
        return self.stages.retirement.end(sequence, reason, now, why)

    def _take_in(self, item: Request | RefusedCall | AskedChange, turn: Turn) -> None:
        if isinstance(item, AskedChange):
            self._apply_change(item, turn)
            return
        size = self.shared.population.queue_size
        found = size.requests, size.tokens
        if isinstance(item, RefusedCall):  # its client has its answer, so nobody waits for an update
            turn.arrivals.append(Arrival(item.request, item.refusal, *found))
            self.totals.count_refusal(item.request, item.refusal)
            return
        accepted = self.stages.intake.accept(item, turn.start)
        turn.arrivals.append(Arrival(item, accepted, *found))
        if isinstance(accepted, Refusal):
            self.totals.count_refusal(item, accepted)
            turn.ended_at_start.append(RequestUpdate(item.request_id, (), None, accepted))

    def _apply_change(self, asked: AskedChange, turn: Turn) -> None:
        controls = self.shared.controls
        before = controls.now
        answer: ControlState | str
        try:
            fields = controls.apply(asked.change, turn.start)
        except InvalidControls as error:
            answer = str(error)
        else:
            turn.control_changes.append((len(turn.arrivals), fields[0].change))
            self._obey_controls(fields, before, turn)
            answer = controls.state
        if asked.answer is not None:
            asked.answer(answer)

    def _obey_controls(self, fields: list[SetField], before: Controls, turn: Turn) -> None:
        """Do what a change of the controls asks for at once; the rest follows when the stages next read them."""
        turn.set_fields += fields
        now, population = self.shared.controls.now, self.shared.population
        if not same_order(before, now):
            population.reorder(make_waiting_queue(now, population.waiting.counters()))
        population.resize(now.max_num_seqs)
        self.shared.padding.end_with_batch()
        self.totals.name_tenants(now.tenants)

    def _apply_pause(self, change: Pause, turn: Turn, resumed: list[Sequence]) -> None:
        sequence = self.shared.population.by_id.get(change.request_id)
        if sequence is None:
            return
        if change.paused and sequence in resumed:
            self._held_pauses.append(change)  # its blocks are on their way back; next boundary
            return
        was_paused = bool(sequence.paused_by)
        (sequence.paused_by.add if change.paused else sequence.paused_by.discard)(change.reason)
        if sequence.paused_by and not was_paused:
            self.swap_out += self.stages.retirement.pause(sequence)
            self.just_paused.append(sequence)
        elif was_paused and not sequence.paused_by:
            self.stages.intake.resume(sequence)
        turn.pauses_applied.append((change.request_id, frozenset(sequence.paused_by), change))
