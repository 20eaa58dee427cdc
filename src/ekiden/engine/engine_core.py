"""The turn of the engine: five stages, in order, once per step. Plain and synchronous; it performs no I/O of its own.

Arrivals and aborts are put in the inbox at any time (by the thread that drives the engine) and applied only at the
boundary between steps. Every request ends in exactly one terminal update.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from ekiden.config import CacheConfig, ConfigError, check_controls
from ekiden.engine.interface import EngineStats
from ekiden.engine.step_time import StepTimeModel
from ekiden.engine.totals import Totals
from ekiden.guardrails.abstention import Abstention
from ekiden.guardrails.signals import Signals
from ekiden.kv_cache.kv_cache_manager import KVCacheManager
from ekiden.policies.batching import next_change
from ekiden.policies.ordering import make_waiting_queue, same_order
from ekiden.policies.padding import PaddingRows
from ekiden.policies.speculation import Speculation
from ekiden.stages.advance import Advance
from ekiden.stages.formation import Formation
from ekiden.stages.intake import Intake, RulesFactory, StopTextFactory
from ekiden.stages.refill import Refill
from ekiden.stages.retirement import Retirement
from ekiden.state.containment import NOT_OF_ONE_REQUEST
from ekiden.state.controls import (
    ControlChange,
    Controls,
    ControlsInForce,
    ControlState,
    InvalidControls,
    SetField,
)
from ekiden.state.drafting import Drafter
from ekiden.state.plan import BlockCopy, StepOutput
from ekiden.state.population import Population
from ekiden.state.request import FinishReason, Refusal, RefusedCall, Request, RequestUpdate
from ekiden.state.runner import CopiesLost, ModelRunner
from ekiden.state.sequence import PauseReason, Sequence
from ekiden.state.turn import Arrival, FormationOutcome, Pause, RefillOutcome, Turn, TurnRecorder

logger = logging.getLogger(__name__)

Clock = Callable[[], float]
ControlsAnswer = Callable[[ControlState | str], None]
"""Takes the controls that are in force after a change, or why it was refused."""


class _AskedChange(NamedTuple):
    change: ControlChange
    answer: ControlsAnswer | None


MAX_NOTED_REFUSALS: Final = 32
"""Most refusals of the HTTP layer that one turn records; more than that are counted and not recorded."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """``computed`` is False when there was nothing to compute; ``next_change`` is when that may end by itself."""

    updates: list[RequestUpdate]
    computed: bool
    next_change: float | None


class EngineCore:
    def __init__(
        self,
        *,
        runner: ModelRunner,
        controls: Controls,
        cache: CacheConfig,
        clock: Clock,
        eos_token_ids: frozenset[int] = frozenset(),
        make_stop_text: StopTextFactory = lambda request: None,
        make_rules: RulesFactory | None = None,
        seed: int = 0,
        max_model_len: int | None = None,
        recorder: TurnRecorder | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        info = self._info = runner.info
        self.kv = KVCacheManager(
            num_blocks=info.num_blocks,
            block_size=info.block_size,
            num_swap_blocks=info.num_swap_blocks,
            prefix_caching=cache.enable_prefix_caching,
            least_chunk=info.chunks.least,
        )
        self.controls = ControlsInForce(controls, self._check_controls)
        self.population = Population(make_waiting_queue(controls), controls.max_num_seqs)
        self.step_time = StepTimeModel()
        signals = Signals()
        padding = self._padding = PaddingRows(population=self.population, kv=self.kv, controls=self.controls)
        speculation = None
        if drafter is not None and info.max_drafts:
            speculation = Speculation(
                drafter=drafter,
                controls=self.controls,
                kv=self.kv,
                step_time=self.step_time,
                max_drafts=info.max_drafts,
                least_rows=info.chunks.least_rows,
                tokens_per_change=info.tokens_per_change,
            )
        self.abstention = Abstention(
            controls=self.controls,
            population=self.population,
            kv=self.kv,
            signals=signals,
            step_time=self.step_time,
            tokens_per_row=lambda: 1.0 if speculation is None else speculation.tokens_per_row,
        )
        self.intake = Intake(
            population=self.population,
            kv=self.kv,
            controls=self.controls,
            vocab_size=info.vocab_size,
            max_model_len=min(max_model_len or info.max_model_len, info.max_model_len),
            signals=signals,
            abstention=self.abstention,
            eos_token_ids=eos_token_ids,
            make_stop_text=make_stop_text,
            make_rules=make_rules,
            gives_states=info.hidden_size is not None,
            seed=seed,
        )
        self.formation = Formation(
            population=self.population,
            kv=self.kv,
            controls=self.controls,
            padding=padding,
            step_time=self.step_time,
            chunks=info.chunks,
            speculation=speculation,
        )
        self.advance = Advance(runner=runner, clock=clock)
        self.retirement = Retirement(
            population=self.population,
            kv=self.kv,
            eos_token_ids=eos_token_ids,
            padding=padding,
            signals=signals,
            speculation=speculation,
        )
        self.refill = Refill(
            population=self.population,
            kv=self.kv,
            controls=self.controls,
            padding=padding,
            signals=signals,
        )
        self._clock = clock
        self.recorder = recorder
        self.before_step: Callable[[FormationOutcome], None] | None = None
        """Is shown what the next step computes, before it is computed."""
        self._arrivals: deque[Request | RefusedCall | _AskedChange] = deque()
        """In the order in which they came, so that a request that came before a drain is accepted."""
        self._num_noted = 0
        self._aborts: list[tuple[str, str | None]] = []
        self._pauses: list[Pause] = []
        self._held_pauses: list[Pause] = []
        """Pauses that could not be applied at the last boundary."""
        self._swap_out: list[BlockCopy] = []
        self._just_paused: list[Sequence] = []
        self._refilled = RefillOutcome()
        self._totals = Totals(controls.tenants)

    # --- the inbox: applied at the next step boundary

    def add_request(self, request: Request) -> None:
        self._arrivals.append(request)

    def note_refusal(self, refused: RefusedCall) -> None:
        """Record what the HTTP layer refused, as an arrival that intake had refused for the same reason."""
        if self._num_noted < MAX_NOTED_REFUSALS:
            self._num_noted += 1
            self._arrivals.append(refused)
        else:
            self._totals.count_refusal(refused.request, refused.refusal)

    def abort(self, request_id: str, why: str | None = None) -> None:
        """End a request; an id that is not in the engine (any more) is ignored. ``why`` is None where its client
        went away."""
        self._aborts.append((request_id, why))

    def pause(self, request_id: str, reason: PauseReason = PauseReason.OPERATOR, by: str | None = None) -> None:
        """Take a request out of the running, keeping what it has, until it is resumed; unknown ids are ignored."""
        self._pauses.append(Pause(request_id, reason, True, by))

    def resume(self, request_id: str, reason: PauseReason = PauseReason.OPERATOR, by: str | None = None) -> None:
        """Withdraw a pause; the request goes on when no other reason holds it."""
        self._pauses.append(Pause(request_id, reason, False, by))

    def set_controls(self, change: ControlChange, answer: ControlsAnswer | None = None) -> None:
        """Change the controls. At the boundary ``answer`` gets the new state, or why the change was refused."""
        self._arrivals.append(_AskedChange(change, answer))

    @property
    def request_ids(self) -> list[str]:
        """All requests that have not had their terminal update, those in the inbox included."""
        arrived = [item.request_id for item in self._arrivals if isinstance(item, Request)]
        return [*self.population.by_id, *arrived]

    @property
    def has_work(self) -> bool:
        """True while any request has not had its terminal update."""
        return bool(self._arrivals or self._aborts or self.population.by_id)

    @property
    def all_paused(self) -> bool:
        """True when there are requests and every one of them is paused."""
        return 0 < len(self.population.by_id) == len(self.population.paused)

    # --- the turn

    def step(self) -> StepResult:
        """One turn: intake, formation, advance, retirement, refill."""
        turn = Turn(self._clock())
        updates = self._apply_inbox(turn)
        if not self.population.running:  # an idle engine starts newcomers in the same turn
            self._refilled = turn.refilled_at_start = self.refill.admit(turn.start)
        formed = self.formation.form(
            swap_out=self._swap_out, swap_in=self._refilled.swap_in, resumed=self._refilled.resumed
        )
        plan = formed.plan
        if plan.empty and not plan.swap_out:
            if formed.failed:
                return self._end_turn(turn, StepResult(updates + self._end_failed(turn, formed), True, None))
            return self._end_turn(turn, StepResult(updates, False, self._next_change()))
        turn.formed, load = formed, formed.load
        turn.predicted, turn.prefill_share = self.step_time.predict(load), self.step_time.prefill_share(load)
        if self.before_step is not None:
            self.before_step(formed)
        try:
            output = turn.output = self.advance.run(plan)
        except CopiesLost as error:
            return self._end_turn(turn, StepResult(updates + self._fail_step(turn, formed, str(error)), True, None))
        self._swap_out, self._just_paused = [], []
        turn.end = self._clock()
        if not plan.empty and output.attempts == 1:
            self.step_time.observe(load, output.timing.total, longer=output.new_sizes > 0)
        turn.updates = self.retirement.apply(formed, output, turn.end)
        self._refilled = turn.refilled = self.refill.admit(turn.end)
        self._totals.count_step(turn)
        return self._end_turn(turn, StepResult(updates + turn.updates, True, None))

    def _end_turn(self, turn: Turn, result: StepResult) -> StepResult:
        """Show the turn to the recorder."""
        if self.recorder is not None:
            turn.end = turn.end or turn.start
            turn.epoch = self.controls.now.epoch
            turn.num_waiting, turn.num_running = len(self.population.queued), len(self.population.running)
            turn.num_free_blocks = self.kv.pool.num_available
            try:
                self.recorder.record(turn)
            except NOT_OF_ONE_REQUEST:
                raise
            except Exception:
                # As when the disk is full: the turn is missing in the ledger, and no request ends by it.
                if self._totals.counters.turns_unrecorded_total == 0:
                    logger.exception("a turn could not be recorded; each such turn is counted and missing")
                self._totals.counters.turns_unrecorded_total += 1
        return result

    def _apply_inbox(self, turn: Turn) -> list[RequestUpdate]:
        updates, now = turn.ended_at_start, turn.start
        self.abstention.begin_turn()
        before, expired = self.controls.now, self.controls.expire(now)
        if expired:
            self._obey_controls(expired, before, turn)
        while self._arrivals:
            request = self._arrivals.popleft()
            if isinstance(request, _AskedChange):
                self._apply_change(request, turn)
                continue
            found = self.population.queue_size.requests, self.population.queue_size.tokens
            if isinstance(request, RefusedCall):  # its client has its answer, so nobody waits for an update
                turn.arrivals.append(Arrival(request.request, request.refusal, *found))
                self._totals.count_refusal(request.request, request.refusal)
                continue
            accepted = self.intake.accept(request, now)
            turn.arrivals.append(Arrival(request, accepted, *found))
            if isinstance(accepted, Refusal):
                self._totals.count_refusal(request, accepted)
                updates.append(RequestUpdate(request.request_id, (), None, accepted))
        self._num_noted = 0
        aborts, self._aborts = self._aborts, []
        turn.aborts = [request_id for request_id, _ in aborts]
        for request_id, why in aborts:
            if sequence := self.population.by_id.get(request_id):
                updates.append(self.retirement.end(sequence, FinishReason.ABORT, now, why))
        turn.pauses, self._pauses = self._pauses, []
        held, self._held_pauses = self._held_pauses, []
        for change in held + turn.pauses:
            self._apply_pause(change, turn)
        updates += [
            self.retirement.end(sequence, FinishReason.DEADLINE, now, "the request's deadline has passed")
            for sequence in self.population.expired(now)
        ]
        updates += [
            self.retirement.end(sequence, FinishReason.ABSTAINED, now, words)
            for sequence, words in self.abstention.hopeless(now)
        ]
        self._totals.count_ends(updates)
        return updates

    def _apply_change(self, asked: _AskedChange, turn: Turn) -> None:
        before = self.controls.now
        answer: ControlState | str
        try:
            fields = self.controls.apply(asked.change, turn.start)
        except InvalidControls as error:
            answer = str(error)
        else:
            turn.control_changes.append((len(turn.arrivals), fields[0].change))
            self._obey_controls(fields, before, turn)
            answer = self.controls.state
        if asked.answer is not None:
            asked.answer(answer)

    def _obey_controls(self, fields: list[SetField], before: Controls, turn: Turn) -> None:
        """Do what a change of the controls asks for at once; the rest follows when the stages next read them."""
        turn.set_fields += fields
        now, population = self.controls.now, self.population
        if not same_order(before, now):
            population.reorder(make_waiting_queue(now, population.waiting.counters()))
        population.resize(now.max_num_seqs)
        self._padding.end_with_batch()
        self._totals.name_tenants(now.tenants)

    def _apply_pause(self, change: Pause, turn: Turn) -> None:
        sequence = self.population.by_id.get(change.request_id)
        if sequence is None:
            return
        if change.paused and sequence in self._refilled.resumed:
            self._held_pauses.append(change)  # its blocks are on their way back; next boundary
            return
        was_paused = bool(sequence.paused_by)
        (sequence.paused_by.add if change.paused else sequence.paused_by.discard)(change.reason)
        if sequence.paused_by and not was_paused:
            self._swap_out += self.retirement.pause(sequence)
            self._just_paused.append(sequence)
        elif was_paused and not sequence.paused_by:
            self.intake.resume(sequence)
        turn.pauses_applied.append((change.request_id, frozenset(sequence.paused_by), change))

    def _fail_step(self, turn: Turn, formed: FormationOutcome, message: str) -> list[RequestUpdate]:
        """The step's copies of blocks are lost: every sequence of the plan, and every one whose blocks were to move,
        ends with an error, as does one that was to have a row and has a fault of its own; the others go on."""
        turn.failure = message
        now = turn.end = self._clock()
        self.kv.plan_executed()
        lost = [*formed.sequences, *formed.failed, *formed.preempted, *self._refilled.resumed, *self._just_paused]
        self._swap_out, self._just_paused = [], []
        live = {s.request_id: s for s in lost if self.population.by_id.get(s.request_id) is s}
        turn.updates = [
            self.retirement.end(s, FinishReason.ERROR, now, message if s.fault is None else s.fault.cause)
            for s in live.values()
        ]
        self._totals.count_step(turn)
        self._refilled = turn.refilled = self.refill.admit(now)
        return turn.updates

    def _end_failed(self, turn: Turn, formed: FormationOutcome) -> list[RequestUpdate]:
        """Nothing is to be computed, because the work for each sequence that was to have a row has failed."""
        turn.updates = self.retirement.apply(formed, StepOutput(rows=[]), turn.start)
        self._totals.count_ends(turn.updates)
        return turn.updates

    def _next_change(self) -> float | None:
        times = [self.controls.next_expiry]
        if self.population.by_id:  # the deadline may be of a request that has ended
            times += [self.population.next_deadline, self.abstention.next_look]
            times.append(next_change(self.controls.now, self.population))
        return min((time for time in times if time is not None), default=None)

    def _check_controls(self, controls: Controls) -> None:
        """Raise :class:`InvalidControls` for what the model was not prepared for."""
        info = self._info
        try:
            check_controls(controls, info.block_size)
        except ConfigError as error:
            raise InvalidControls(str(error)) from None
        for name, most in (("max_num_batched_tokens", info.most_tokens), ("max_num_seqs", info.most_rows)):
            value = getattr(controls, name)
            if most is not None and value > most:
                raise InvalidControls(f"{name} is {value}; the model was loaded for at most {most}: restart for more")

    # --- what others may see

    def stats(self) -> EngineStats:
        return self._totals.snapshot(self.population, self.kv, self._refilled.wait_reason)

    def check_integrity(self) -> None:
        """Assert the invariants of every owner of state. Called after every step in tests."""
        self.population.check_integrity()
        self.kv.check_integrity()
