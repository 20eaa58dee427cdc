"""A deterministic simulation of the production engine core: the fake model, a virtual clock, one seeded generator.

With a ``change_rate`` the controls change before so many of the steps, with chance of their own.
`simulate(seed)` draws a configuration, a load, faults and troubles (`trouble.py`) from the seed alone, checks every
invariant after every step, then stops the faults and requires that everything drains. The same seed always gives the
same :class:`Outcome`.
A broken invariant raises :class:`~ekiden.state.invariants.InvariantBreach`, which names it.
"""

import random
from dataclasses import dataclass, field

import msgspec

from ekiden.config import BATCHING, ORDERS, CacheConfig, Config, LimitsConfig, SchedulerConfig, controls_of
from ekiden.engine.driver import ANY_TIME, Source, drive
from ekiden.engine.engine_core import EngineCore, StepResult
from ekiden.state.controls import ControlChange, ControlState, ControlValue, SetBy, TenantLimits
from ekiden.state.drafting import Ask, Drafter, Guess
from ekiden.state.invariants import Invariant, InvariantBreach, checking
from ekiden.state.request import Carried, FinishReason, Pooling, Reading, Request, RequestUpdate
from ekiden.state.runner import RunnerError
from ekiden.state.sampling_params import SamplingParams
from tests.fake_answers import answer_to, likely_tokens, next_token, pooled_states
from tests.simulation.trouble import PLANTED, PLANTED_LOSS, TroubledRunner, Troubles
from tests.steps import StepView, StepWatcher

VOCAB = 50
TENANTS = {
    "a": TenantLimits(weight=2.0),
    "limited": TenantLimits(max_num_queued_reqs=2, tokens_per_second=300.0, burst_tokens=400.0),
}
MAX_STEPS = 5_000
MAX_MODEL_LEN = 200
CARRY_RATE = 0.08
"""How many of the requests come from an engine that has ended."""


@dataclass(slots=True)
class World:
    """The drawn parameters of one run."""

    batching: str
    order: str
    max_overtakes: int
    max_queue_seconds: float | None
    pause_rate: float
    max_num_seqs: int
    block_size: int
    num_blocks: int
    num_swap_blocks: int
    budget: int
    prefix_caching: bool
    queue_limit: int
    num_requests: int
    abort_rate: float
    failure_rate: float
    stall_rate: float
    burst: float


@dataclass(slots=True)
class Outcome:
    world: World
    log: list[tuple[object, ...]] = field(default_factory=list)
    steps: int = 0
    preemptions: int = 0
    prefix_hits: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    lost_copies: int = 0
    """Requests that ended because their blocks could not be copied."""
    troubles: set[str] = field(default_factory=set)
    """The kinds of trouble that came."""
    run_again: int = 0


def draw_world(rng: random.Random) -> World:
    block_size = rng.choice([1, 2, 4, 8])
    max_num_seqs = rng.choice([1, 2, 4, 8])
    return World(
        batching=rng.choice([*BATCHING, "continuous", "continuous", "continuous"]),
        order=rng.choice(ORDERS),
        max_overtakes=rng.choice([0, 1, 3]),
        max_queue_seconds=rng.choice([None, None, 0.05]),
        pause_rate=rng.choice([0.0, 0.0, 0.1, 0.6]),
        max_num_seqs=max_num_seqs,
        block_size=block_size,
        num_blocks=rng.choice([6, 10, 20, 60]),
        num_swap_blocks=rng.choice([0, 3, 40, 200]),
        budget=max_num_seqs + 2 * block_size + rng.choice([0, 1, 7, 40]),
        prefix_caching=rng.random() < 0.7,
        queue_limit=rng.choice([3, 1000]),
        num_requests=rng.randrange(1, 24),
        abort_rate=rng.choice([0.0, 0.0, 0.05, 0.4]),
        failure_rate=rng.choice([0.0, 0.0, 0.0, 0.05]),
        stall_rate=rng.choice([0.0, 0.05]),
        burst=rng.choice([0.0, 0.01, 0.2]),
    )


class Guesser(Drafter):
    """Drafts of which most are what the fake model says next; the others are wrong from there on."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.max_drafts = self._rng.choice([0, 0, 1, 3])

    def guess(self, ask: Ask) -> Guess:
        drafts: list[int] = []
        for _ in range(self._rng.randrange(ask.limit + 1)):
            right = next_token([*ask.token_ids, *drafts], VOCAB)
            drafts.append(right if self._rng.random() < 0.7 else (right + 1) % VOCAB)
        return Guess(drafts, match=self._rng.randrange(1, 30))


class Simulation(StepWatcher):
    def __init__(self, seed: int, num_requests: int | None = None, change_rate: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.change_rate = change_rate
        self._change_rng = random.Random(f"controls-{seed}")
        self._carry_rng = random.Random(f"carried-{seed}")
        self._reading_rng = random.Random(f"readings-{seed}")
        self.world = draw_world(self.rng)
        if num_requests is not None:
            self.world.num_requests = num_requests
        self.time = self.started = 0.0
        self.faults = True
        self.outcome = Outcome(self.world)
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[int]] = {}
        self.brought: dict[str, int] = {}
        """How many tokens each got from an engine that has ended."""
        self.expected: dict[str, list[int]] = {}
        """What the fake model says to each prompt, further than any request may go."""
        self.ended: set[str] = set()
        self.views: list[StepView] = []
        guesser = Guesser(seed)  # with chance of its own
        self.troubles = Troubles(seed)
        self.runner = TroubledRunner(
            vocab_size=VOCAB,
            max_drafts=guesser.max_drafts,
            num_blocks=self.world.num_blocks,
            block_size=self.world.block_size,
            num_swap_blocks=self.world.num_swap_blocks,
            max_model_len=MAX_MODEL_LEN,
            before_step=self._inject,
        )
        self.config = Config(
            scheduler=SchedulerConfig(
                max_num_seqs=self.world.max_num_seqs,
                max_num_batched_tokens=self.world.budget,
                batching=self.world.batching,
                batch_window_ms=30.0,
                scheduling_policy=self.world.order,
                max_overtakes=self.world.max_overtakes,
                max_concurrent_prefills=self.rng.choice([1, 2, 8]),
                target_itl_ms=self.rng.choice([None, 5.0, 200.0]),
                prefill_first=self.rng.random() < 0.2,
            ),
            cache=CacheConfig(block_size=self.world.block_size, enable_prefix_caching=self.world.prefix_caching),
            limits=LimitsConfig(
                max_num_queued_reqs=self.world.queue_limit,
                max_num_queued_tokens=2_000,
                max_queue_seconds=self.world.max_queue_seconds,
            ),
            tenants=TENANTS,
        )
        self.core = EngineCore(
            runner=self.runner,
            controls=controls_of(self.config),
            cache=self.config.cache,
            clock=self._clock,
            eos_token_ids=frozenset({0}),
            recorder=self,
            drafter=guesser,
            make_stop_text=self.troubles.make_stop_text,
            make_rules=self.troubles.make_rules,
        )
        self.runner.sizes = set()
        self.runner.troubles, self.runner.population = self.troubles, self.core.population
        self._tries = 0
        self.answers: list[ControlState | str] = []
        """What came of the changes of the controls."""
        self._most_overtakes = self.world.max_overtakes
        self._in_batch = 0

    # --- the virtual world

    def now(self) -> float:
        return self.time

    def _clock(self) -> float:
        self.time += 0.0001
        return self.time

    def _inject(self, step: int) -> None:
        self.time += 0.01
        if not self.faults:
            return
        if self.rng.random() < self.world.stall_rate:
            self.time += self.rng.choice([0.5, 5.0])
        self._tries += 1
        # What fails by chance succeeds when it is tried again, and so does what is tried again for another reason.
        if self._tries == 1 and self.rng.random() < self.world.failure_rate:
            raise RunnerError(f"injected at step {step}")

    def on_step(self, view: StepView) -> None:
        self.views.append(view)

    def _draw_request(self, number: int) -> Request:
        rng = self.rng
        length = rng.choice([1, 1, 2, 3, 5, 8, 9, 16, 17, 33, 60, 150])
        prompt = [rng.randrange(VOCAB) for _ in range(length)]
        if self.requests and rng.random() < 0.4:  # share a prefix with an earlier one
            earlier = rng.choice(list(self.requests.values())).prompt_token_ids
            prompt = [*earlier[: rng.randrange(1, len(earlier) + 1)], *prompt[: rng.choice([0, 1, 5])]]
        deadline = self.time + rng.choice([0.05, 1.0, 20.0]) if rng.random() < 0.15 else None
        return Request(
            request_id=f"r{number}",
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(
                temperature=0.0,
                max_tokens=rng.choice([None, 1, 2, 5, 20, 60]) if number % 30 != 7 else 0,
                ignore_eos=rng.random() < 0.5,
                stop_token_ids=(rng.randrange(VOCAB),) if rng.random() < 0.2 else (),
            ),
            arrival_time=self.time,
            deadline=deadline,
            tenant=rng.choice(["a", "b", "limited"]),
            priority=rng.choice([0, 0, 1, -2]),
            reading=self._draw_reading(len(prompt)),
        )

    def _draw_carried(self, request: Request) -> Carried | None:
        """Some requests come from an engine that has ended, at any place of their answers."""
        if self._carry_rng.random() >= CARRY_RATE:
            return None
        brought = self._carry_rng.randrange(max(1, self._length_of_answer(request)))
        if request.request_id in self.troubles.of:
            brought = 0  # the engine before may have met it
        tokens = tuple(self.expected[request.request_id][:brought])
        return Carried(token_ids=tokens, first_token_time=self.started if brought else None)

    def _length_of_answer(self, request: Request) -> int:
        """How many tokens the request gets if nothing ends it but its tokens; 0 when it can never run, or is only
        read."""
        sampling, room = request.sampling, self._room_after(request)
        wanted = room if sampling.max_tokens is None else sampling.max_tokens
        if request.reading is not None or room < max(1, wanted):
            return 0
        stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else {0})
        tokens = self.expected[request.request_id]
        stopped = next((place for place, token in enumerate(tokens, 1) if token in stops), room)
        return min(stopped, wanted)

    def _room_after(self, request: Request) -> int:
        """The most tokens that fit after the prompt."""
        return min(MAX_MODEL_LEN, self.world.num_blocks * self.world.block_size) - len(request.prompt_token_ids)

    def _draw_reading(self, length: int) -> Reading | None:
        """About one request in eight is only read: pooled, scored, or both."""
        rng = self._reading_rng
        pooling, scored_from = rng.choice([None, *Pooling]), rng.choice([None, rng.randrange(length) + 1])
        if rng.random() < 0.85 or (pooling is None and scored_from is None):
            return None
        return Reading(pooling=pooling, scored_from=scored_from if length > 1 or scored_from is None else None)

    def _draw_change(self) -> ControlChange:
        """Any controls, and some that cannot work; half of them expire."""
        rng = self._change_rng
        seqs = rng.choice([1, 2, 4, 8])
        budget = seqs + 2 * self.world.block_size + rng.choice([0, 3, 40])
        weights = {"a": TenantLimits(weight=rng.choice([0.5, 4.0])), "limited": TENANTS["limited"]}
        values: dict[str, ControlValue] = rng.choice(
            [
                {"batching": rng.choice(BATCHING)},
                {"scheduling_policy": rng.choice(ORDERS), "ageing_seconds": rng.choice([1.0, 30.0])},
                {"max_num_seqs": seqs, "max_num_batched_tokens": budget},
                {"max_num_seqs": rng.choice([0, seqs])},
                {"max_overtakes": rng.choice([0, 1, 3]), "max_concurrent_prefills": rng.choice([1, 8])},
                {"target_itl_ms": rng.choice([None, 5.0]), "prefill_first": rng.random() < 0.5},
                {"max_num_queued_reqs": rng.choice([3, 1000]), "tenants": weights, "draining": rng.random() < 0.2},
                {"abstain": rng.random() < 0.5},
            ]
        )
        expires_at = self.time + rng.choice([0.02, 0.2, 2.0]) if rng.random() < 0.5 else None
        return ControlChange(values=values, set_by=SetBy.PERSON, who="anna", why="a trial", expires_at=expires_at)

    # --- running

    def run(self) -> Outcome:
        drive(self.core, self._load(), self, self._after_step)
        self._check_drained()
        return self.outcome

    def _load(self) -> Source:
        """Requests, aborts, pauses and faults, between as many steps as chance has it; then until all has ended."""
        for number in range(self.world.num_requests):
            request = self.troubles.maybe_plant(self._draw_request(number))
            self.requests[request.request_id] = request
            self.expected[request.request_id] = answer_to(request.prompt_token_ids, VOCAB, MAX_MODEL_LEN)
            carried = self._draw_carried(request)
            self.tokens[request.request_id] = [] if carried is None else list(carried.token_ids)
            self.brought[request.request_id] = len(self.tokens[request.request_id])
            self.core.add_request(msgspec.structs.replace(request, carried=carried))
            while self.rng.random() >= self.world.burst and self.core.has_work:
                yield from self._one_step()
                if self.rng.random() < 0.5:
                    break
            if self.rng.random() < self.world.abort_rate:
                self.core.abort(self.rng.choice(list(self.requests)))
            self._pause_and_resume()
        self.faults = self.rng.random() < 0.3
        while self.core.has_work:
            yield from self._one_step()
            if self.outcome.steps >= MAX_STEPS:
                raise InvariantBreach(Invariant.PROGRESS, f"no end in sight: {self.core.population.by_id}")
            self._pause_and_resume(resume_all=self.outcome.steps > 200)
            if self.outcome.steps > MAX_STEPS // 2:
                self.faults = False

    def _one_step(self) -> Source:
        self.views.clear()
        self.started = self.now()
        if self._change_rng.random() < self.change_rate:
            self.core.set_controls(self._draw_change(), self.answers.append)
        self._in_batch = self.core.population.num_in_batch
        self._tries = 0
        yield ANY_TIME  # a request that is paused may be resumed before the next step

    def _after_step(self, result: StepResult) -> None:
        self.outcome.steps += 1
        self.core.check_integrity()
        controls = self.core.controls.now
        self._most_overtakes = max(self._most_overtakes, controls.max_overtakes)
        most_rows = max(controls.max_num_seqs, self._in_batch)  # with fewer slots those that run keep theirs
        with checking(Invariant.BUDGET):
            assert self.core.population.num_in_batch <= most_rows, "more slots were given out than there are"
        for view in self.views:
            self._check_plan(view, most_rows)
        for update in result.updates:
            self._take(update)
        self._check_work_conservation()
        self._check_patience()
        self._check_tables()

    @checking(Invariant.PROGRESS)
    def wait_until(self, moment: float) -> None:
        """Nothing to compute: unfinished work that is not paused then needs a reason that time alone can end."""
        if self.core.population.by_id.keys() - self.core.population.paused.keys():
            assert moment < ANY_TIME, "work, but nothing scheduled and nothing awaited"
            self.time = max(self.time, moment)

    def _pause_and_resume(self, *, resume_all: bool = False) -> None:
        if not resume_all and self.rng.random() < self.world.pause_rate:
            self.core.pause(self.rng.choice(list(self.requests)))
        for request_id in list(self.core.population.paused):
            if resume_all or self.rng.random() < 0.3:
                self.core.resume(request_id)

    # --- checks

    def _check_plan(self, view: StepView, most_rows: int) -> None:
        self._check_budget(view, most_rows)
        self._check_chunks(view)
        self._check_victims(view)
        counts = zip(view.formed.sequences, view.formed.plan.rows, strict=True)
        self.outcome.log.append(("step", tuple((s.request_id, len(row.token_ids)) for s, row in counts)))

    @checking(Invariant.BUDGET)
    def _check_budget(self, view: StepView, most_rows: int) -> None:
        formed, plan = view.formed, view.formed.plan
        counts = [len(row.token_ids) for row in plan.rows]
        assert plan.total_tokens > 0 or plan.swap_out, "an empty plan was computed"
        assert sum(counts) <= self.core.controls.now.max_num_batched_tokens, f"{counts} tokens"
        assert len(plan.rows) == len(formed.sequences) <= most_rows, "more rows than slots"
        assert len({s.request_id for s in formed.sequences}) == len(plan.rows), "a sequence has two rows"
        assert len({row.slot for row in plan.rows}) == len(plan.rows), "a slot has two rows"
        assert all(count > row.num_drafts for count, row in zip(counts, plan.rows, strict=True)), "only drafts"
        assert all(row.end <= len(row.blocks) * self.world.block_size for row in plan.rows), "a row outgrows its blocks"

    @checking(Invariant.PROGRESS)
    def _check_victims(self, view: StepView) -> None:
        formed, running = view.formed, self.core.population.running
        oldest = min((s.admission for s in [*formed.sequences, *formed.preempted]), default=0)
        assert all(s.admission > oldest for s in formed.preempted), "the oldest running sequence was the victim"
        assert sorted(running, key=lambda s: s.admission) == running, "running is not in order of admission"

    @checking(Invariant.SAME_TOKENS)
    def _check_chunks(self, view: StepView) -> None:
        """Prefill chunks end at block borders or with their prompt, and leave no last chunk of a single token."""
        for sequence, row in zip(view.formed.sequences, view.formed.plan.rows, strict=True):
            left = sequence.num_prompt_tokens - row.end
            if row.prefill and not sequence.padding:
                assert left <= 0 or row.end % self.world.block_size == 0, f"{sequence!r}: border"
                assert left != 1 or self.world.block_size == 1, f"{sequence!r}: a single token is left"

    @checking(Invariant.PROGRESS)
    def _check_patience(self) -> None:
        """No sequence runs out of tokens to compute, is overtaken too often, or outlives a deadline."""
        for sequence in self.core.population.running:
            assert sequence.num_computed_tokens < len(sequence.token_ids), f"{sequence!r} has nothing left to compute"
        for sequence in self.core.population.by_id.values():
            assert sequence.num_overtaken <= self._most_overtakes, f"{sequence!r} was overtaken too often"
            deadline = sequence.request.deadline
            assert deadline is None or deadline > self.started, f"{sequence!r} lives beyond its deadline"

    @checking(Invariant.GIVEN_BACK)
    def _check_tables(self) -> None:
        """No block is held for drafts between steps."""
        for sequence in self.core.population.running:
            most = self.core.kv.blocks_for(len(sequence.token_ids))
            assert len(sequence.block_table) <= most, f"{sequence!r} needs {most} blocks"

    @checking(Invariant.WORK_CONSERVATION)
    def _check_work_conservation(self) -> None:
        """Under `continuous`, the first sequence in line does not fit."""
        population = self.core.population
        if self.core.controls.now.batching != "continuous" or not population.running or population.preempted:
            return
        head = population.waiting.first(1)
        if head and population.num_free_slots:
            assert not self.core.refill._fits(head[0]), f"{head[0]!r} waits though it fits"

    def _take(self, update: RequestUpdate) -> None:
        request = self.requests[update.request_id]
        with checking(Invariant.ONE_END):
            assert update.request_id not in self.ended, f"{update.request_id}: an event after its terminal one"
        with checking(Invariant.CONTAINED):
            failed = update.request_id in self.troubles.met
            assert not (failed and update.token_ids), f"{update.request_id}: a token though its work has failed"
        with checking(Invariant.SAME_TOKENS):
            known = len(self.tokens[update.request_id])
            told = self.expected[update.request_id][known : known + len(update.token_ids)]
            assert list(update.token_ids) == told, f"{update.request_id}: wrong token after {known} of its answer"
        self.tokens[update.request_id] += update.token_ids
        self.outcome.log.append(
            (update.request_id, update.token_ids, update.finish and update.finish.reason, update.refusal)
        )
        if update.terminal:
            self.ended.add(update.request_id)
            self._check_end(request, update)

    @checking(Invariant.RIGHT_END)
    def _check_end(self, request: Request, update: RequestUpdate) -> None:
        tokens = self.tokens[request.request_id]
        if update.finish is None:
            assert len(tokens) == self.brought[request.request_id], "a refused request got tokens"
            return
        finish, sampling = update.finish, request.sampling
        assert finish.num_output_tokens == len(tokens)
        if request.reading is not None:
            assert finish.reason is not FinishReason.LENGTH
            assert not tokens, "a prompt that is only read got tokens"
            if finish.reason is FinishReason.STOP:
                self._check_reading(request, request.reading, update)
                return
        stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else {0})
        assert not stops & set(tokens[:-1]), "generation went past a stop token"
        if finish.reason is FinishReason.STOP:
            assert set(tokens[-1:]) & stops, "it stopped at no stop token"
        elif finish.reason is FinishReason.LENGTH:
            room = self._room_after(request)
            wanted = room if sampling.max_tokens is None else sampling.max_tokens
            assert len(tokens) == min(wanted, room), "it ended before or after its length"
        elif finish.reason is FinishReason.ERROR:
            if PLANTED not in (finish.message or ""):
                raise InvariantBreach(Invariant.BUDGET, f"the engine broke a step by itself: {finish.message}")
            lost = finish.message == PLANTED_LOSS
            self.outcome.lost_copies += lost
            with checking(Invariant.CONTAINED):
                assert lost or request.request_id in self.troubles.met, f"another's trouble ended it: {finish.message}"
        elif finish.reason is FinishReason.DEADLINE:
            assert request.deadline is not None
            assert finish.finish_time >= request.deadline, "it ended before its deadline"
        elif finish.reason is FinishReason.ABSTAINED:
            assert request.deadline is not None
            assert finish.finish_time < request.deadline, "it was given up after its deadline"
            assert finish.admitted_time is None, "it was given up while it ran"
            assert self.brought[request.request_id] == len(tokens) == 0, "it was given up though it had tokens"

    @checking(Invariant.SAME_TOKENS)
    def _check_reading(self, request: Request, reading: Reading, update: RequestUpdate) -> None:
        prompt = request.prompt_token_ids
        wanted = None if reading.pooling is None else pooled_states(prompt, reading.pooling)
        assert update.pooled == wanted, f"{request.request_id}: another vector"
        if reading.scored_from is not None:
            likely = [entry.rank == 1 for entry in update.prompt_logprobs or ()]
            assert likely == likely_tokens(prompt, VOCAB, reading.scored_from), f"{request.request_id}: other scores"

    def _check_drained(self) -> None:
        with checking(Invariant.ONE_END):
            assert self.ended == set(self.requests), "a request had no terminal event"
        self._check_given_back()
        stats = self.core.stats()
        self.outcome.preemptions = stats.preemptions_total
        self.outcome.prefix_hits = stats.prefix_cache_hits_total
        self.outcome.finished = stats.finished_total
        self.outcome.refused = stats.refused_total
        ends = sum(stats.finished_total.values()) + sum(stats.refused_total.values())
        self.outcome.run_again = stats.steps_run_again_total
        self.outcome.troubles = {self.troubles.of[request_id][0] for request_id in self.troubles.met}
        with checking(Invariant.ONE_END):
            assert ends == len(self.requests), "the counters disagree with the events"
            assert stats.turns_unrecorded_total == 0, "a turn could not be recorded"

    @checking(Invariant.GIVEN_BACK)
    def _check_given_back(self) -> None:
        population, kv = self.core.population, self.core.kv
        assert not [*population.running, *population.preempted, *population.padding, *population.paused]
        assert population.num_free_slots == self.core.controls.now.max_num_seqs
        assert kv.pool.num_referenced == 0, "blocks were leaked"


def simulate(seed: int, num_requests: int | None = None, change_rate: float = 0.0) -> Outcome:
    """Run the world of ``seed``, cut to its first ``num_requests`` requests if that is given."""
    return Simulation(seed, num_requests, change_rate).run()


def shrink(seed: int) -> int:
    """The fewest requests with which the world of ``seed`` still fails; raises ValueError when it does not."""
    for num_requests in range(1, Simulation(seed).world.num_requests + 1):
        try:
            simulate(seed, num_requests)
        except Exception:  # noqa: BLE001 - any failure counts, since the fewest requests that fail are wanted
            return num_requests
    raise ValueError(f"seed {seed} does not fail")
