"""The turn of the engine: five stages, in order, once per step. Plain and synchronous; it performs no I/O of its own.

What comes from outside goes to the inbox (`inbox.py`), which is applied only at the boundary between steps. Every
request ends in exactly one terminal update.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ekiden.config import CacheConfig
from ekiden.engine.inbox import AskedChange, ControlsAnswer, Inbox
from ekiden.engine.interface import EngineStats
from ekiden.engine.step_time import StepTimeModel
from ekiden.engine.totals import Totals
from ekiden.engine.wiring import Shared, check_for, make_stages
from ekiden.kv_cache.kv_cache_manager import KVCacheManager
from ekiden.policies.batching import next_change
from ekiden.policies.ordering import make_waiting_queue
from ekiden.policies.padding import PaddingRows
from ekiden.stages.intake import RulesFactory, StopTextFactory
from ekiden.state.containment import NOT_OF_ONE_REQUEST
from ekiden.state.controls import ControlChange, Controls, ControlsInForce
from ekiden.state.drafting import Drafter
from ekiden.state.plan import StepOutput
from ekiden.state.population import Population
from ekiden.state.request import FinishReason, RefusedCall, Request, RequestUpdate
from ekiden.state.runner import CopiesLost, ModelRunner
from ekiden.state.sequence import PauseReason
from ekiden.state.turn import FormationOutcome, Pause, RefillOutcome, Turn, TurnRecorder

logger = logging.getLogger(__name__)

Clock = Callable[[], float]


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
        joins_at_start: bool = True,
    ) -> None:
        info = runner.info
        self.kv = KVCacheManager(
            num_blocks=info.num_blocks,
            block_size=info.block_size,
            num_swap_blocks=info.num_swap_blocks,
            prefix_caching=cache.enable_prefix_caching,
            least_chunk=info.chunks.least,
        )
        self.controls = ControlsInForce(controls, partial(check_for, info))
        self.population = Population(make_waiting_queue(controls), controls.max_num_seqs)
        self.step_time = StepTimeModel()
        shared = Shared(
            population=self.population,
            kv=self.kv,
            controls=self.controls,
            step_time=self.step_time,
            padding=PaddingRows(population=self.population, kv=self.kv, controls=self.controls),
        )
        stages = make_stages(
            shared,
            runner,
            clock=clock,
            eos_token_ids=eos_token_ids,
            make_stop_text=make_stop_text,
            make_rules=make_rules,
            seed=seed,
            max_model_len=max_model_len,
            drafter=drafter,
        )
        self.abstention, self.intake, self.formation = stages.abstention, stages.intake, stages.formation
        self.advance, self.retirement, self.refill = stages.advance, stages.retirement, stages.refill
        self._clock = clock
        self.recorder = recorder
        self.before_step: Callable[[FormationOutcome], None] | None = None
        """Is shown what the next step computes, before it is computed."""
        self._totals = Totals(controls.tenants)
        self._inbox = Inbox(shared, stages, self._totals)
        self._refilled = RefillOutcome()
        self._joins_at_start = joins_at_start

    # --- the inbox: applied at the next step boundary

    def add_request(self, request: Request) -> None:
        self._inbox.arrivals.append(request)

    def note_refusal(self, refused: RefusedCall) -> None:
        """Record what the HTTP layer refused, as an arrival that intake had refused for the same reason."""
        self._inbox.note_refusal(refused)

    def abort(self, request_id: str, why: str | None = None) -> None:
        """End a request; an id that is not in the engine (any more) is ignored. ``why`` is None where its client
        went away."""
        self._inbox.aborts.append((request_id, why))

    def pause(self, request_id: str, reason: PauseReason = PauseReason.OPERATOR, by: str | None = None) -> None:
        """Take a request out of the running, keeping what it has, until it is resumed; unknown ids are ignored."""
        self._inbox.pauses.append(Pause(request_id, reason, True, by))

    def resume(self, request_id: str, reason: PauseReason = PauseReason.OPERATOR, by: str | None = None) -> None:
        """Withdraw a pause; the request goes on when no other reason holds it."""
        self._inbox.pauses.append(Pause(request_id, reason, False, by))

    def set_controls(self, change: ControlChange, answer: ControlsAnswer | None = None) -> None:
        """Change the controls. At the boundary ``answer`` gets the new state, or why the change was refused."""
        self._inbox.arrivals.append(AskedChange(change, answer))

    @property
    def request_ids(self) -> list[str]:
        """All requests that have not had their terminal update, those in the inbox included."""
        arrived = [item.request_id for item in self._inbox.arrivals if isinstance(item, Request)]
        return [*self.population.by_id, *arrived]

    @property
    def has_work(self) -> bool:
        """True while any request has not had its terminal update."""
        return bool(self._inbox.arrivals or self._inbox.aborts or self.population.by_id)

    @property
    def all_paused(self) -> bool:
        """True when there are requests and every one of them is paused."""
        return 0 < len(self.population.by_id) == len(self.population.paused)

    # --- the turn

    def step(self) -> StepResult:
        """One turn: intake, formation, advance, retirement, refill."""
        turn, waited = Turn(self._clock()), len(self.population.queued) > 0
        updates = self._inbox.apply(turn, self._refilled.resumed)  # with the intake of newcomers
        if (turn.arrivals and self._joins_at_start) or not self.population.running:
            # Newcomers that find a free slot join this very step.
            turn.refilled_at_start = self.refill.admit(turn.start, waited=waited or not self._joins_at_start)
            self._refilled = self._refilled.then(turn.refilled_at_start)
        formed = self.formation.form(
            swap_out=self._inbox.swap_out, swap_in=self._refilled.swap_in, resumed=self._refilled.resumed
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
        self._inbox.swapped()
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

    def _fail_step(self, turn: Turn, formed: FormationOutcome, message: str) -> list[RequestUpdate]:
        """The step's copies of blocks are lost: every sequence of the plan, and every one whose blocks were to move,
        ends with an error, as does one that was to have a row and has a fault of its own; the others go on."""
        turn.failure = message
        now = turn.end = self._clock()
        self.kv.plan_executed()
        lost = [*formed.sequences, *formed.failed, *formed.preempted, *self._refilled.resumed, *self._inbox.just_paused]
        self._inbox.swapped()
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

    # --- what others may see

    def stats(self) -> EngineStats:
        return self._totals.snapshot(self.population, self.kv, self._refilled.wait_reason)

    def check_integrity(self) -> None:
        """Assert the invariants of every owner of state. Called after every step in tests."""
        self.population.check_integrity()
        self.kv.check_integrity()
