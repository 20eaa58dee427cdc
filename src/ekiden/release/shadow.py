"""The shadow: a candidate on the live arrivals, in the simulator, beside production.

It follows the ledger as it grows. Two engine cores serve in virtual time what production was asked: one under
production's own controls, one under the candidate's. The first is there to be compared with what was recorded: its
error says how far the prediction for the second can be trusted. Step times come from a model fitted to the run's last
steps. It sees arrivals, lengths and shared prefixes only, so nothing of a prompt need be kept, and it does nothing to
traffic but read a file.

It is bounded. Processor time: a share of one core (1 %), after which it waits and falls behind, and says by how much;
what it cannot make good within ``MOST_BEHIND`` it skips, and counts. Memory: the requests of one window, and
``MOST_BLOCKS`` prompt blocks, after which prefixes count as new ones once. An answer's length is known once it has
ended, so the shadow stays ``lag`` behind on purpose; of what has not ended by then the median length stands in.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from ekiden.config import CacheConfig, check_controls
from ekiden.engine.driver import drive
from ekiden.engine.engine_core import EngineCore, StepResult
from ekiden.engine.simulated import EngineSpeed, SimulatedRunner
from ekiden.engine.step_time import StepCost
from ekiden.evidence.decision_replay import config_of, runner_info
from ekiden.evidence.reader import LedgerReader, request_detail_of
from ekiden.evidence.recorded_controls import controls_at
from ekiden.evidence.recorded_requests import PromptMaker
from ekiden.evidence.recorded_speed import recorded_speed
from ekiden.evidence.what_if import WHOLE, offered_again
from ekiden.ledger.records import REFUSED, RequestRow, RunHeader
from ekiden.measure.figures import time_per_output_token
from ekiden.measure.percentiles import median, percentiles
from ekiden.release.plan import Objectives
from ekiden.state.controls import Controls
from ekiden.state.request import Request

SHARE: Final = 0.01
"""Of one core."""
MOST_BEHIND: Final = 600.0
MOST_BLOCKS: Final = 200_000
_SLICE: Final = 0.25
"""Virtual seconds between two looks at the processor time that was used."""
_AT_ONCE: Final = 64
"""Requests read between two such looks."""
_FIT_TURNS: Final = 400
_FIT_SECONDS: Final = 60.0


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """One request: seconds to the first token and to the end, its tokens; None for the times of a refused one."""

    first: float | None
    e2e: float | None
    tokens: int = 0

    def missed(self, objectives: Objectives) -> bool:
        if self.first is None or self.e2e is None:
            return True
        each = time_per_output_token(self.first, self.e2e, self.tokens)
        return self.first > objectives.ttft or (each or 0.0) > objectives.tpot


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """Over the requests of the window that have ended in all three: as recorded, as production is simulated, and as
    the candidate is. Seconds; None without a value."""

    slo_missed_share: float | None = None
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    e2e_p50: float | None = None
    e2e_p99: float | None = None


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    requests: int
    recorded: Predicted
    production: Predicted
    candidate: Predicted
    error: float | None
    """The largest relative difference between the latencies of ``production`` and ``recorded``."""
    missed_error: float | None
    """``slo_missed_share`` of ``production`` - that of ``recorded``."""
    step_error: float
    """Median relative error of the step-time model over the steps that it was fitted to."""
    unknown_lengths: int
    seconds: float
    """Of production that were simulated, all in all."""
    behind_seconds: float
    """How far it is behind where it could be."""
    skipped_seconds: float
    cpu_seconds: float
    cpu_share: float
    """Of one core, since it began."""


class _Arm:
    """One engine core in virtual time."""

    def __init__(
        self, header: RunHeader, controls: Controls, cache: CacheConfig, speed: EngineSpeed, at: float
    ) -> None:
        self.runner = SimulatedRunner(speed, info=runner_info(header))
        self.clock = self.runner.clock
        self.clock.time = at
        self.outcomes: dict[int, Outcome] = {}
        self._due: deque[Request] = deque()
        self._core = EngineCore(
            runner=self.runner,
            controls=controls,
            cache=cache,
            clock=self.clock.now,
            max_model_len=header.max_model_len,
        )

    def offer(self, request: Request) -> None:
        self._due.append(request)

    def advance(self, until: float) -> None:
        """Serve until a virtual time, or a step beyond it."""
        drive(self._core, self._source(until), self.clock, self._note)

    def _source(self, until: float) -> Iterator[float]:
        while self.clock.time < until:
            while self._due and self._due[0].arrival_time <= self.clock.time:
                self._core.add_request(self._due.popleft())
            yield min(self._due[0].arrival_time, until) if self._due else until

    def _note(self, result: StepResult) -> None:
        for update in result.updates:
            if update.refusal is not None:
                self.outcomes[int(update.request_id)] = Outcome(None, None)
            if (end := update.finish) is not None:
                first = None if end.first_token_time is None else end.first_token_time - end.arrival_time
                e2e = end.finish_time - end.arrival_time
                whole = end.reason.value in WHOLE
                outcome = Outcome(first, e2e, end.num_output_tokens) if whole else Outcome(None, None)
                self.outcomes[int(update.request_id)] = outcome
        if result.computed:
            self.clock.time += self.runner.speed.gap


@dataclass(slots=True)
class _World:
    """All that depends on one run of the engine under unchanged controls."""

    header: RunHeader
    controls: Controls
    production: _Arm
    candidate: _Arm
    prompts: PromptMaker
    number: int
    """Of the newest request that was read."""
    recorded: dict[int, Outcome] = field(default_factory=dict)
    arrivals: deque[tuple[float, int]] = field(default_factory=deque)
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=500))
    blocks: int = 0
    fitted_at: float = -math.inf

    @property
    def arms(self) -> tuple[_Arm, _Arm]:
        return self.production, self.candidate

    @property
    def time(self) -> float:
        return min(arm.clock.time for arm in self.arms)


class ShadowFollower:
    """``ledger`` opens the run that is being written. ``cpu`` is the processor time of the calling thread, ``now`` any
    clock that goes on; ``candidate`` are values of controls by name."""

    def __init__(
        self,
        ledger: Callable[[], LedgerReader],
        candidate: Mapping[str, Any],
        objectives: Objectives,
        *,
        share: float = SHARE,
        lag: float = 30.0,
        window: float = 600.0,
        now: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._ledger, self._candidate, self._objectives = ledger, dict(candidate), objectives
        self._share, self._lag, self._window = share, lag, window
        self._now, self._cpu = now, cpu
        self._began, self._used = now(), 0.0
        self._world: _World | None = None
        self._horizon = self._simulated = self._skipped = 0.0
        self._unknown = 0
        self._step_error = 0.0

    def look(self) -> None:
        """Go on as far as the ledger and the allowance reach. Raises what opening the ledger raises, and
        :class:`~ekiden.config.ConfigError` for a candidate that cannot work."""
        before = self._cpu()
        if self._allowance(before) <= 0:
            return
        try:
            with self._ledger() as reader:
                self._follow(reader, before)
        finally:
            self._used += self._cpu() - before

    def _allowance(self, before: float) -> float:
        """Seconds of processor time that are left now."""
        return self._share * (self._now() - self._began) - self._used - (self._cpu() - before)

    def _follow(self, reader: LedgerReader, before: float) -> None:
        last = reader.turn(reader.bounds()[1])
        if last is None:
            return
        self._horizon = last.end / 1e6 - self._lag
        controls = controls_at(reader, last.turn)
        world = self._world
        if world is None or world.header.run_id != reader.header.run_id or world.controls != controls:
            world = self._restarted(reader, controls)
        elif self._horizon - world.time > MOST_BEHIND:
            self._skipped += self._horizon - world.time
            world = self._restarted(reader, controls)
        if world.time - world.fitted_at >= _FIT_SECONDS:
            self._fit(reader, world, last.turn)
        while world.time < self._horizon and self._allowance(before) > 0:
            start = world.time
            until = min(self._horizon, start + _SLICE)
            self._read(reader, world, until)
            for arm in world.arms:
                arm.advance(until)
            self._simulated += world.time - start
        self._forget(world)

    def _restarted(self, reader: LedgerReader, controls: Controls) -> _World:
        """From the horizon on: what was in the engine before is not known to the simulation, and soon gone."""
        header, at = reader.header, max(0.0, self._horizon)
        changed = msgspec.convert(msgspec.to_builtins(controls) | self._candidate, Controls)
        check_controls(changed, header.block_size)
        first = reader.requests_arrived(round(at * 1e6), 2**62)
        newest = reader.requests_newest()
        speed, cache = EngineSpeed(cost=_NO_COST), config_of(header).cache
        self._world = _World(
            header=header,
            controls=controls,
            production=_Arm(header, controls, cache, speed, at),
            candidate=_Arm(header, changed, cache, speed, at),
            prompts=PromptMaker(vocab_size=header.vocab_size, block_size=header.block_size),
            number=min((row.request for row in first), default=newest + 1) - 1,
        )
        return self._world

    def _fit(self, reader: LedgerReader, world: _World, turn: int) -> None:
        speed = recorded_speed(list(reader.turns(max(1, turn - _FIT_TURNS), turn)))
        for arm in world.arms:
            arm.runner.speed = speed
        self._step_error, world.fitted_at = speed.median_error, world.time

    def _read(self, reader: LedgerReader, world: _World, until: float) -> None:
        """Offer what arrived before a time to both."""
        while rows := reader.requests_after(world.number, _AT_ONCE):
            for row in rows:
                if row.arrival / 1e6 >= until:
                    return
                world.number = row.request
                self._offer(reader, world, row)

    def _offer(self, reader: LedgerReader, world: _World, row: RequestRow) -> None:
        detail, header = request_detail_of(row), world.header
        room = row.max_tokens or header.max_model_len - row.prompt_tokens
        if detail.by_door or detail.bad_token is not None or not row.prompt_tokens or room <= 0:
            return
        end = reader.end(row.request)
        if end is not None and end.reason in WHOLE:
            length = end.output_tokens
            world.lengths.append(length)
            world.recorded[row.request] = Outcome(row.seconds_until(end.first_token), end.e2e / 1e6, length)
        else:
            if end is not None and end.reason == REFUSED:
                world.recorded[row.request] = Outcome(None, None)
            length, self._unknown = int(median(list(world.lengths))) if world.lengths else 1, self._unknown + 1
        if world.blocks > MOST_BLOCKS:
            world.blocks = 0
            world.prompts = PromptMaker(vocab_size=header.vocab_size, block_size=header.block_size)
        world.blocks += row.prompt_tokens // header.block_size
        request = offered_again(row, detail, world.prompts.prompt(row, detail), max(1, min(length, room)), header)
        world.arrivals.append((request.arrival_time, row.request))
        for arm in world.arms:
            arm.offer(request)

    def _forget(self, world: _World) -> None:
        while world.arrivals and world.arrivals[0][0] < world.time - self._window:
            _, number = world.arrivals.popleft()
            for known in (world.recorded, *(arm.outcomes for arm in world.arms)):
                known.pop(number, None)

    def report(self) -> ShadowReport:
        """What is known now; it computes over one window, and is meant to be asked for now and then."""
        world, elapsed = self._world, max(1e-9, self._now() - self._began)
        of: list[list[Outcome]] = [[], [], []]
        if world is not None:
            kinds = (world.recorded, *(arm.outcomes for arm in world.arms))
            numbers = [number for _, number in world.arrivals if all(number in kind for kind in kinds)]
            of = [[kind[number] for number in numbers] for kind in kinds]
        recorded, production, candidate = (_predicted(outcomes, self._objectives) for outcomes in of)
        pairs = [(getattr(production, name), getattr(recorded, name)) for name in _LATENCIES]
        missed = (production.slo_missed_share, recorded.slo_missed_share)
        return ShadowReport(
            requests=len(of[0]),
            recorded=recorded,
            production=production,
            candidate=candidate,
            error=max((abs(new - old) / old for new, old in pairs if new is not None and old), default=None),
            missed_error=None if missed[0] is None or missed[1] is None else missed[0] - missed[1],
            step_error=self._step_error,
            unknown_lengths=self._unknown,
            seconds=self._simulated,
            behind_seconds=0.0 if world is None else max(0.0, self._horizon - world.time),
            skipped_seconds=self._skipped,
            cpu_seconds=self._used,
            cpu_share=self._used / elapsed,
        )


_NO_COST: Final = StepCost(0.0, 0.0, 0.0, 0.0, 0.0)
_LATENCIES: Final = ("ttft_p50", "ttft_p99", "e2e_p50", "e2e_p99")


def _predicted(outcomes: list[Outcome], objectives: Objectives) -> Predicted:
    if not outcomes:
        return Predicted()
    found: dict[str, float] = {"slo_missed_share": sum(each.missed(objectives) for each in outcomes) / len(outcomes)}
    for name, values in (
        ("ttft", [each.first for each in outcomes if each.first is not None]),
        ("e2e", [each.e2e for each in outcomes if each.e2e is not None]),
    ):
        if values:
            found[f"{name}_p50"], found[f"{name}_p99"] = percentiles(values, (50, 99))
    return Predicted(**found)


class PlannedShadow:
    """The shadow of a plan (:class:`~ekiden.release.controller.ShadowRun`): over so many seconds of production."""

    def __init__(self, follower: ShadowFollower, *, seconds: float, patience: float, now: Callable[[], float]) -> None:
        self._follower, self._seconds = follower, seconds
        self._now, self._until = now, now() + seconds + patience

    def look(self) -> float | None:
        self._follower.look()
        report = self._follower.report()
        late = self._now() > self._until
        if report.seconds < self._seconds and not late:
            return None
        ours, theirs = report.candidate.slo_missed_share, report.production.slo_missed_share
        return math.nan if ours is None or theirs is None else ours - theirs

    def told(self) -> dict[str, object]:
        told: dict[str, object] = msgspec.to_builtins(self._follower.report())
        return {"report": told}
