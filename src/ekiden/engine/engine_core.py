"""The turn of the engine: five stages, in order, once per step. Plain and synchronous; it performs no I/O of its own.

Arrivals and aborts are put in the inbox at any time (by the thread that drives the engine) and applied only at the
boundary between steps. Every request ends in exactly one terminal update.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ekiden.backends.base import ModelRunner, RunnerError
from ekiden.config import CacheConfig, LimitsConfig, SchedulerConfig
from ekiden.engine.interface import EngineStats
from ekiden.engine.step_time import StepTimeModel, load_of
from ekiden.guardrails.limits import Tenants
from ekiden.guardrails.signals import DrainRate
from ekiden.kv_cache.kv_cache_manager import KVCacheManager
from ekiden.policies.batching import make_batching_policy
from ekiden.policies.ordering import make_waiting_queue
from ekiden.stages.advance import Advance, RowSampler
from ekiden.stages.formation import Formation, FormationLimits
from ekiden.stages.intake import Intake, IntakeLimits, RulesFactory, StopTextFactory
from ekiden.stages.refill import Refill, RefillOutcome
from ekiden.stages.retirement import Retirement
from ekiden.state.plan import BatchPlan, StepOutput
from ekiden.state.population import Population
from ekiden.state.request import FinishReason, Refusal, Request, RequestUpdate
from ekiden.state.sequence import PauseReason, Sequence

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """What an observer sees of a step, after the fact. ``index`` counts steps that computed something."""

    index: int
    start: float
    end: float
    plan: BatchPlan
    slots: list[int]
    """The slot of each row of the plan; a sequence that ended in this step has given its own back by now."""
    output: StepOutput
    updates: list[RequestUpdate]


class StepObserver(Protocol):
    def on_step(self, view: StepView) -> None:
        """Called once a step, between steps. It must not change what it is shown."""
        ...


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
        sampler: RowSampler,
        scheduler: SchedulerConfig,
        cache: CacheConfig,
        limits: LimitsConfig,
        clock: Clock,
        eos_token_ids: frozenset[int] = frozenset(),
        make_stop_text: StopTextFactory = lambda request: None,
        seed: int = 0,
        max_model_len: int | None = None,
        make_rules: RulesFactory | None = None,
        tenants: Tenants | None = None,
        observer: StepObserver | None = None,
    ) -> None:
        info = runner.info
        self.kv = KVCacheManager(
            num_blocks=info.num_blocks,
            block_size=info.block_size,
            num_swap_blocks=info.num_swap_blocks,
            prefix_caching=cache.enable_prefix_caching,
        )
        tenants = tenants or Tenants()
        self.population = Population(make_waiting_queue(scheduler, tenants.weight), scheduler.max_num_seqs)
        self.step_time = StepTimeModel()
        self.drain_rate = DrainRate()
        batching = make_batching_policy(scheduler.batching, window_seconds=scheduler.batch_window_ms / 1000)
        self.intake = Intake(
            population=self.population,
            kv=self.kv,
            limits=IntakeLimits(
                vocab_size=info.vocab_size,
                max_model_len=min(max_model_len or info.max_model_len, info.max_model_len),
                max_num_queued_reqs=limits.max_num_queued_reqs,
                max_num_queued_tokens=limits.max_num_queued_tokens,
                max_queue_seconds=limits.max_queue_seconds,
            ),
            tenants=tenants,
            drain_rate=self.drain_rate,
            eos_token_ids=eos_token_ids,
            make_stop_text=make_stop_text,
            seed=seed,
        )
        self.formation = Formation(
            population=self.population,
            kv=self.kv,
            make_rules=make_rules,
            limits=FormationLimits(
                max_num_batched_tokens=scheduler.max_num_batched_tokens,
                max_concurrent_prefills=scheduler.max_concurrent_prefills,
                target_seconds=scheduler.target_itl_ms / 1000 if scheduler.target_itl_ms else None,
            ),
            step_time=self.step_time,
        )
        self.advance = Advance(runner=runner, sampler=sampler, clock=clock)
        self.retirement = Retirement(
            population=self.population,
            kv=self.kv,
            eos_token_ids=eos_token_ids,
            keeps_finished_rows=batching.keeps_finished_rows,
        )
        self.refill = Refill(
            population=self.population,
            kv=self.kv,
            batching=batching,
            max_overtakes=scheduler.max_overtakes,
            drain_rate=self.drain_rate,
        )
        self._clock = clock
        self._observer = observer
        self._arrivals: deque[Request] = deque()
        self._aborts: deque[str] = deque()
        self._pauses: deque[tuple[str, PauseReason, bool]] = deque()
        self._swap_out: list[tuple[int, int]] = []
        self._just_paused: list[Sequence] = []
        self._refilled = RefillOutcome()
        self._totals = _Totals()

    # --- the inbox: applied at the next step boundary

    def add_request(self, request: Request) -> None:
        self._arrivals.append(request)

    def abort(self, request_id: str) -> None:
        """End a request; an id that is not in the engine (any more) is ignored."""
        self._aborts.append(request_id)

    def pause(self, request_id: str, reason: PauseReason = PauseReason.OPERATOR) -> None:
        """Take a request out of the running, keeping what it has, until it is resumed; unknown ids are ignored."""
        self._pauses.append((request_id, reason, True))

    def resume(self, request_id: str, reason: PauseReason = PauseReason.OPERATOR) -> None:
        """Withdraw a pause; the request goes on when no other reason holds it."""
        self._pauses.append((request_id, reason, False))

    @property
    def has_work(self) -> bool:
        """True while any request has not had its terminal update."""
        return bool(self._arrivals or self._aborts or self.population.by_id)

    # --- the turn

    def step(self) -> StepResult:
        """One turn: intake, formation, advance, retirement, refill."""
        start = self._clock()
        updates = self._apply_inbox(start)
        if not self.population.running:
            self._refilled = self.refill.admit(start)  # an idle engine starts newcomers in the same turn
        plan = self.formation.form(
            swap_out=self._swap_out, swap_in=self._refilled.swap_in, resumed=self._refilled.resumed
        )
        if plan.empty and not plan.swap_out:
            return StepResult(updates, False, self._next_change(start))
        slots = [] if self._observer is None else [sequence.slot for sequence in plan.sequences]
        load = load_of(plan)
        try:
            output = self.advance.run(plan)
        except RunnerError as error:
            updates += self._fail_step(plan, str(error))
            return StepResult(updates, True, None)
        self._swap_out, self._just_paused = [], []
        end = self._clock()
        if not plan.empty:
            self.step_time.observe(load, output.timing.total)
        retired = self.retirement.apply(plan, output, end)
        self._refilled = self.refill.admit(end)
        self._totals.count_step(plan, output, retired)
        updates += retired
        if self._observer is not None:
            view = StepView(
                index=self._totals.steps, start=start, end=end, plan=plan, slots=slots, output=output, updates=updates
            )
            self._observer.on_step(view)
        return StepResult(updates, True, None)

    def _apply_inbox(self, now: float) -> list[RequestUpdate]:
        updates: list[RequestUpdate] = []
        while self._arrivals:
            request = self._arrivals.popleft()
            accepted = self.intake.accept(request, now)
            if isinstance(accepted, Refusal):
                self._totals.refused[accepted.reason.value] += 1
                updates.append(RequestUpdate(request.request_id, (), None, accepted))
        while self._aborts:
            sequence = self.population.by_id.get(self._aborts.popleft())
            if sequence is not None:
                updates.append(self.retirement.end(sequence, FinishReason.ABORT, now))
        pauses, self._pauses = self._pauses, deque()
        for request_id, reason, paused in pauses:
            self._apply_pause(request_id, reason, paused)
        updates += [
            self.retirement.end(sequence, FinishReason.DEADLINE, now, "the request's deadline has passed")
            for sequence in self.population.expired(now)
        ]
        self._totals.count_ends(updates)
        return updates

    def _apply_pause(self, request_id: str, reason: PauseReason, paused: bool) -> None:
        sequence = self.population.by_id.get(request_id)
        if sequence is None:
            return
        if paused and sequence in self._refilled.resumed:
            self._pauses.append((request_id, reason, paused))  # its blocks are on their way back; next boundary
            return
        was_paused = bool(sequence.paused_by)
        if paused:
            sequence.paused_by.add(reason)
        else:
            sequence.paused_by.discard(reason)
        if sequence.paused_by and not was_paused:
            self._swap_out += self.retirement.pause(sequence)
            self._just_paused.append(sequence)
        elif was_paused and not sequence.paused_by:
            self.intake.resume(sequence)

    def _fail_step(self, plan: BatchPlan, message: str) -> list[RequestUpdate]:
        """The runner failed: whoever was in the plan ends with an error, the rest goes on."""
        now = self._clock()
        self.kv.plan_executed()
        lost = [*plan.sequences, *plan.preempted, *self._refilled.resumed, *self._just_paused]
        self._swap_out, self._just_paused = [], []
        live = {s.request_id: s for s in lost if self.population.by_id.get(s.request_id) is s}
        updates = [self.retirement.end(s, FinishReason.ERROR, now, message) for s in live.values()]
        self._totals.count_ends(updates)
        self._refilled = self.refill.admit(now)
        return updates

    def _next_change(self, now: float) -> float | None:
        times = [self.population.next_deadline, self.refill.next_change(now)]
        return min((time for time in times if time is not None), default=None)

    # --- what others may see

    def stats(self) -> EngineStats:
        population, totals, wait_reason = self.population, self._totals, self._refilled.wait_reason
        num_waiting = len(population.waiting)
        return EngineStats(
            num_running=len(population.running),
            num_waiting=num_waiting,
            num_paused=len(population.paused),
            num_preempted=len(population.preempted),
            waiting_by_reason={wait_reason.value: num_waiting} if wait_reason and num_waiting else {},
            waiting_tokens=population.waiting.num_tokens,
            kv_blocks_total=self.kv.pool.num_blocks,
            kv_blocks_used=self.kv.pool.num_referenced,
            steps_total=totals.steps,
            prompt_tokens_total=self.retirement.prefilled_tokens,
            generation_tokens_total=totals.generation_tokens,
            preemptions_total=totals.preemptions,
            prefix_cache_queries_total=self.kv.prefix_queries,
            prefix_cache_hits_total=self.kv.prefix_hits,
            finished_total=dict(totals.finished),
            refused_total=dict(totals.refused),
            model_seconds_total=totals.model_seconds,
            sampling_seconds_total=totals.sampling_seconds,
            host_seconds_total=totals.host_seconds,
            last_step_tokens=totals.last_step_tokens,
        )

    def check_integrity(self) -> None:
        """Assert the invariants of every owner of state. Called after every step in tests."""
        self.population.check_integrity()
        self.kv.check_integrity()


class _Totals:
    """Counters that only grow."""

    def __init__(self) -> None:
        self.steps = 0
        self.generation_tokens = 0
        self.preemptions = 0
        self.last_step_tokens = 0
        self.model_seconds = self.sampling_seconds = self.host_seconds = 0.0
        self.finished: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def count_step(self, plan: BatchPlan, output: StepOutput, updates: list[RequestUpdate]) -> None:
        self.steps += 1
        self.generation_tokens += sum(len(update.token_ids) for update in updates)
        self.preemptions += len(plan.preempted)
        self.last_step_tokens = plan.total_tokens
        self.model_seconds += output.timing.model
        self.sampling_seconds += output.timing.sampling
        self.host_seconds += output.timing.host
        self.count_ends(updates)

    def count_ends(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            if update.finish is not None:
                self.finished[update.finish.reason.value] += 1
