"""The production engine core in virtual time with its ledger, a planted harm, and the guard's pure functions beside it.

Each virtual second the guard reads the ledger's file, takes its steps, and its changes go to the engine as its
runtime would send them. Persons and processes outside are played: who is paged repairs after a while, and a restart
makes a new core that goes on with the requests in flight, and a new ledger.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import msgspec

import ekiden.data
from ekiden.backends.fake import FakeRunner
from ekiden.config import CacheConfig, Config, SchedulerConfig, controls_of
from ekiden.engine.engine_core import EngineCore
from ekiden.engine.simulated import EngineSpeed, SimulatedRunner
from ekiden.engine.step_time import StepCost
from ekiden.evidence.harm import readings
from ekiden.evidence.reader import LedgerReader
from ekiden.guardrails.actions import Surroundings
from ekiden.guardrails.force import change_of, held_after, renewal
from ekiden.guardrails.ladder import RuleState, Step, acknowledge, in_words, step
from ekiden.guardrails.readings import Reading
from ekiden.guardrails.rules import Rules, parse_rules
from ekiden.ledger.recorder import Recorder, whole_microseconds
from ekiden.ledger.store import LedgerWriter
from ekiden.measure.figures import time_per_output_token
from ekiden.state.controls import ControlState
from ekiden.state.plan import BatchPlan, RowResult, StepOutput
from ekiden.state.request import Carried, Finish, Request
from ekiden.state.runner import ChunkRules, ModelRunner, RunnerBroken, RunnerInfo
from ekiden.state.sampling_params import SamplingParams
from tests.unit.evidence.recorded import header_of

BLOCK = 16
SPEED = EngineSpeed(cost=StepCost(0.004, 0.004, 1e-6, 0.0004, 1e-8), gap=0.001)
"""A machine whose rows cost much, as on a CPU: 8 rows take 36 ms, and make 222 tokens a second."""
EXPIRY = 6.0


def shipped(*names: str, ttft: float = 2.0, tpot: float = 0.06) -> Rules:
    """The rules that the package carries, or some of them, for what this machine promises."""
    text = files(ekiden.data).joinpath("guard", "default.toml").read_text("utf-8")
    assert "ttft_seconds = 5.0" in text
    assert "tpot_seconds = 0.25" in text
    text = text.replace("ttft_seconds = 5.0", f"ttft_seconds = {ttft}")
    rules = parse_rules(text.replace("tpot_seconds = 0.25", f"tpot_seconds = {tpot}"))
    return msgspec.structs.replace(rules, rules=tuple(r for r in rules.rules if not names or r.name in names))


def load(
    rate: float,
    begin: float,
    end: float,
    *,
    output: int = 24,
    prompt: int = 32,
    tenant: str = "ours",
    together: int = 1,
) -> list[Request]:
    """Requests at even distances, or so many together; prompts and answers vary by half."""
    chance = random.Random(f"{tenant} {begin} {together}")
    made = []
    for number in range(round((end - begin) * rate)):
        length = max(2, round(output * chance.uniform(0.5, 1.5)))
        tokens = [chance.randrange(1, 900) for _ in range(max(2, round(prompt * chance.uniform(0.5, 1.5))))]
        made.append(
            Request(
                request_id=f"{tenant}-{begin:g}-{together}-{number}",
                prompt_token_ids=tuple(tokens),
                sampling=SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True),
                arrival_time=begin + number // together * together / rate,
                tenant=tenant,
            )
        )
    return made


@dataclass(slots=True)
class Harm:
    """What is planted from ``at`` on, until ``until``."""

    at: float = 20.0
    until: float = 1e9
    slowdown: float = 1.0
    """Every step takes so many times as long."""
    wedged: float = 0.0
    """The first step from then on takes so many seconds."""
    failing_rows: int | None = None
    """Rows from this one on fail; at any time."""
    leaked_blocks: float = 0.0
    """Blocks a second that nobody gives back."""
    swap_seconds: float = 0.0
    """What a copied block costs; at any time."""

    def holds(self, now: float) -> bool:
        return self.at <= now < self.until


class _Machine:
    """The simulated model with its harm."""

    def __init__(self, world: "Guarded", model: SimulatedRunner) -> None:
        self.info, self._world, self._model = model.info, world, model

    def execute(self, plan: BatchPlan) -> StepOutput:
        world, harm, clock = self._world, self._world.harm, self._model.clock
        before = clock.time
        output = self._model.execute(plan)
        clock.time += harm.swap_seconds * (len(plan.swap_in) + len(plan.swap_out))
        if harm.holds(before):
            clock.time += (clock.time - before) * (harm.slowdown - 1.0)
            if harm.wedged:
                world.wait_in_step(clock.time + harm.wedged)
        if harm.failing_rows is not None:
            output = msgspec.structs.replace(
                output,
                rows=[
                    row if at < harm.failing_rows else RowResult(error="planted") for at, row in enumerate(output.rows)
                ],
            )
        return output

    def check(self) -> None:
        """It can always compute."""

    def close(self) -> None:
        self._model.close()


class _Writer(LedgerWriter):
    """Writes when it is told to, and not by a clock."""

    def _run(self) -> None:
        pass

    def write(self) -> None:
        self._flush()


@dataclass(slots=True)
class Outcome:
    """One request as its client saw it."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    first: float | None = None
    finish: Finish | None = None
    ended: float | None = None
    refused: str | None = None

    def missed_at(self, rules: Rules) -> float | None:
        """When it was known that the request would not be good; None for a good one."""
        arrival, goal = self.request.arrival_time, rules.objectives
        late = None if self.first is not None and self.first - arrival <= goal.ttft_seconds else goal.ttft_seconds
        if self.refused is not None:
            return None if self.refused == "tenant_rate" or self.refused == "tenant_queue_full" else self.ended
        if late is not None:
            return arrival + late
        if self.finish is None or self.ended is None or self.first is None:
            return None
        pace = time_per_output_token(self.first, self.ended, len(self.tokens)) or 0.0
        whole = self.finish.reason.value in ("stop", "length")
        return None if whole and pace <= goal.tpot_seconds else self.ended


class Guarded:
    def __init__(
        self,
        folder: Path,
        requests: Iterable[Request],
        rules: Rules,
        *,
        harm: Harm,
        guarded: bool = True,
        seconds: float = 90.0,
        num_blocks: int = 512,
        num_swap_blocks: int = 256,
        repairs_after: float | None = None,
        at: dict[float, Callable[["Guarded"], None]] | None = None,
        **scheduler: object,
    ) -> None:
        """``repairs_after``: seconds after a page when the person ends the harm and acknowledges. ``at``: what else
        happens at times."""
        settings = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "target_itl_ms": 44.0, **scheduler}
        self.config = Config(
            scheduler=SchedulerConfig(**settings),  # type: ignore[arg-type]
            cache=CacheConfig(block_size=BLOCK, enable_prefix_caching=False),
        )
        self.harm, self.rules, self.guarded = harm, rules, guarded
        self.outcomes = {request.request_id: Outcome(request) for request in requests}
        self.state: dict[str, RuleState] = {}
        self.steps: list[Step] = []
        self.restarts: list[float] = []
        self.seen: list[tuple[float, dict[str, Reading]]] = []
        self.refusals_of_guard: list[str] = []
        self._folder, self._seconds, self._repairs_after = folder, seconds, repairs_after
        self._sizes = num_blocks, num_swap_blocks
        self._events = deque(sorted((at or {}).items()))
        self._held: dict[str, tuple[dict[str, object], ...]] = {}
        self._renewed: dict[str, float] = {}
        self._ticks = 0
        self._leaked = 0.0
        self._restart_asked = False
        self._fresh = True
        self._start(0.0)

    # --- the engine

    def _start(self, now: float) -> None:
        blocks, swap = self._sizes
        info = RunnerInfo(
            backend="simulated", vocab_size=1000, max_model_len=1024, block_size=BLOCK, num_blocks=blocks,
            num_swap_blocks=swap, bytes_per_block=1024, chunks=ChunkRules(border=BLOCK, least=2),
        )  # fmt: skip
        inner = FakeRunner(vocab_size=1000, num_blocks=blocks, block_size=BLOCK, num_swap_blocks=swap)
        self.model = SimulatedRunner(SPEED, info=info, inner=inner)
        self.model.clock.time = now
        machine: ModelRunner = _Machine(self, self.model)
        self._base = now
        name = f"run-{len(self.restarts)}"
        header = msgspec.structs.replace(header_of(self.config, machine, name), clock_base=round(now * 1e6))
        self.path = self._folder / f"{name}.sqlite"
        self._writer = _Writer(self.path, header)
        controls = controls_of(self.config)
        recorder = Recorder(
            self._writer.put, clock_base=round(now * 1e6), block_size=BLOCK, prefix_caching=False, controls=controls
        )
        self.core = EngineCore(
            runner=machine,
            controls=controls,
            cache=self.config.cache,
            clock=whole_microseconds(self.model.clock.now),
            recorder=recorder,
        )
        self._reader = LedgerReader(self.path)
        self._fresh = True

    @property
    def now(self) -> float:
        return self.model.clock.time

    def run(self) -> "Guarded":
        todo = deque(sorted((o.request for o in self.outcomes.values()), key=lambda request: request.arrival_time))
        while self.now < self._seconds:
            while todo and todo[0].arrival_time <= self.now:
                self.core.add_request(todo.popleft())
            try:
                result = self.core.step()
            except RunnerBroken:
                self._restart()
                continue
            for update in result.updates:
                outcome = self.outcomes[update.request_id]
                outcome.tokens += update.token_ids
                if update.token_ids and outcome.first is None:
                    outcome.first = self.now
                if update.terminal:
                    outcome.ended, outcome.finish = self.now, update.finish
                    outcome.refused = None if update.refusal is None else update.refusal.reason.value
            if result.computed:
                self.model.clock.time += SPEED.gap
                self._leak()
            else:
                moments = [self._ticks + 1.0, result.next_change, todo[0].arrival_time if todo else None]
                soonest = min(moment for moment in moments if moment is not None)
                self.model.clock.wait_until(soonest + 1e-6)  # the engine reads whole microseconds
            self._tick()
            if self._restart_asked:
                self._restart()
        self._reader.close()
        self._writer.write()
        self._writer.close()
        return self

    def _leak(self) -> None:
        if not self.harm.leaked_blocks or not self.harm.holds(self.now):
            return
        due = (self.now - max(self.harm.at, self._base)) * self.harm.leaked_blocks
        while self._leaked + 1 <= due and self.core.kv.pool.num_available > 1:
            self.core.kv.pool.allocate(1)
            self._leaked += 1

    def wait_in_step(self, until: float) -> None:
        """A step that does not end: time passes, the guard looks, and a restart ends it."""
        while self.now < until:
            self.model.clock.time = min(until, self._ticks + 1.0)
            self._tick()
            if self._restart_asked:
                raise RunnerBroken("killed")
        self.harm.wedged = 0.0

    def _restart(self) -> None:
        """Another engine goes on with the requests in flight, a second later; the fault begins anew in it."""
        self._restart_asked, self._leaked = False, 0.0
        self.harm.wedged = 0.0
        flight, changes, now = self.core.request_ids, self.core.controls.state.changes, self.now + 1.0
        self._reader.close()
        self._writer.close()
        self.restarts.append(self.now)
        self._start(now)
        for change in changes:
            if change.expires_at is None or change.expires_at > now:
                self.core.set_controls(change)
        for name in flight:
            outcome = self.outcomes[name]
            carried = Carried(token_ids=tuple(outcome.tokens), first_token_time=outcome.first)
            self.core.add_request(msgspec.structs.replace(outcome.request, carried=carried))

    # --- the guard

    def _tick(self) -> None:
        while self._ticks + 1 <= self.now:
            self._ticks += 1
            while self._events and self._events[0][0] <= self._ticks:
                self._events.popleft()[1](self)
            self._look(float(self._ticks))

    def _look(self, now: float) -> None:
        if not self.guarded or now < self._base:
            return
        self._writer.write()
        found = readings(self._reader, at=now - self._base, objectives=self.rules.objectives)
        self.seen.append((now, found))
        self.state, steps = step(self.rules, self.state, found, now)
        self.steps += steps
        controls = self.core.controls.now
        around = Surroundings(self.rules.objectives, controls_of(self.config), BLOCK)
        words = in_words(self.rules, self.state)
        for taken in steps:
            self._held = held_after(self._held, taken, controls, around)  # type: ignore[arg-type, assignment]
            change = change_of(taken.rule, self._held, guard=words, why=taken.why, expires_at=self.now + EXPIRY)  # type: ignore[arg-type]
            self.core.set_controls(change, self._answered)
            self._renewed[taken.rule] = now
            if taken.up and "restart" in taken.actions:
                self._restart_asked = True
            if taken.pages and self._repairs_after is not None:
                self._events.append((now + self._repairs_after, _repair(taken.rule)))
        for name, stood in self.state.items():
            if stood.rung and now - self._renewed[name] >= EXPIRY / 2:
                again = renewal(self.core.controls.state, name, guard=words, expires_at=self.now + EXPIRY)
                if again is not None:
                    self.core.set_controls(again, self._answered)
                    self._renewed[name] = now

    def _answered(self, answer: ControlState | str) -> None:
        if isinstance(answer, str):
            self.refusals_of_guard.append(answer)

    # --- what came of it

    def misses(self) -> list[float]:
        """When each request that was not good missed its objectives, in order."""
        found = (outcome.missed_at(self.rules) for outcome in self.outcomes.values())
        return sorted(at for at in found if at is not None and at <= self._seconds)

    @property
    def budget(self) -> int:
        """Bad requests that the objective allows of all that were offered."""
        return int((1.0 - self.rules.objectives.attainment) * len(self.outcomes))

    @property
    def slo_missed_at(self) -> float | None:
        """When more requests had missed than the objective allows; None if it never came to that."""
        misses = self.misses()
        return misses[self.budget] if len(misses) > self.budget else None

    def fired_at(self, rule: str) -> float | None:
        return next((taken.at for taken in self.steps if taken.rule == rule and taken.up), None)


def _repair(rule: str) -> Callable[[Guarded], None]:
    def repair(world: Guarded) -> None:
        world.harm.until = world.now
        world.state = acknowledge(world.state, rule, "ben")

    return repair
