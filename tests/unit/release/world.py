"""A server in virtual time for tests of releases: the production engine core, recorded by the production recorder."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ekiden.config import CacheConfig, Config, LimitsConfig, SchedulerConfig, controls_of
from ekiden.engine.driver import drive
from ekiden.engine.engine_core import EngineCore
from ekiden.engine.simulated import EngineSpeed, SimulatedRunner
from ekiden.engine.step_time import StepCost
from ekiden.evidence.reader import LedgerReader
from ekiden.ledger.recorder import Recorder, whole_microseconds
from ekiden.ledger.store import LedgerWriter
from ekiden.release.analysis import AnalysisPhase, AnalysisRun
from ekiden.release.plan import ReleaseError, parse_release
from ekiden.release.server import Asked, OutOfReach, Told
from ekiden.release.state import ArmName, Block, Event, Place
from ekiden.release.store import ReleaseStore, create, store_for
from ekiden.state.controls import ControlChange, SetBy
from ekiden.state.drafting import Drafter
from ekiden.state.request import Request
from ekiden.state.runner import ChunkRules, RunnerInfo
from ekiden.state.sampling_params import SamplingParams
from tests.unit.evidence.recorded import header_of

EPOCH = 1_800_000_000.0
PLACE = Place(address="127.0.0.1:8000", model="toy/model")
SPEED = EngineSpeed(cost=StepCost(0.120, 0.004, 1e-6, 0.0005, 1e-8), gap=0.001)
INFO = RunnerInfo(
    backend="simulated",
    vocab_size=1000,
    max_model_len=512,
    block_size=16,
    num_blocks=256,
    num_swap_blocks=64,
    bytes_per_block=1024,
    chunks=ChunkRules(border=16, least=2),
)
PLAN = """
version = 1
name = "try"
owner = "anna"
why = "more room for bursts"

[candidate]
max_num_seqs = 16

[objectives]
ttft = 1.0
tpot = 0.2

[canary]
pairs = 6
block_seconds = 8
burn_in_seconds = 1
drain_seconds = 2
settle_seconds = 6
silence_seconds = 20
seed = 3

[[metrics]]
name = "slo_missed_share"
successCondition = "result <= 0.1"
failureCondition = "result > 0.1"

[[metrics]]
name = "error_share"
successCondition = "result <= 0.05"
"""


def plan_with(**replaced: str):
    """The plan with lines replaced, by the setting's name: ``max_num_seqs="1"``."""
    lines = [
        f"{name} = {replaced[name]}" if (name := line.partition(" = ")[0]) in replaced else line
        for line in PLAN.splitlines()
    ]
    return parse_release("\n".join(lines))


def at_its_horizon(folder: Path) -> ReleaseStore:
    """A release that waits for a person."""
    plan = plan_with()
    store = store_for(folder, plan)
    create(store, plan, who="anna", before={"max_num_seqs": 8})
    pass_the_horizon(store)
    return store


def pass_the_horizon(store: ReleaseStore) -> None:
    """What a canary leaves in the journal of a release that was made."""
    block = Block(pair=0, attempt=0, place=0, arm=ArmName.CANDIDATE, run_id="run", begun=1.0)
    for event, told in (
        (Event.BLOCK_BEGUN, block),
        (Event.ANALYSED, AnalysisRun(phase=AnalysisPhase.SUCCESSFUL, message="all conditions are met")),
    ):
        store.append(event, **{name: getattr(told, name) for name in told.__struct_fields__})


class World:
    """Implements :class:`ekiden.release.server.Server`; ``advance`` lets virtual time pass."""

    def __init__(
        self,
        folder: Path,
        *,
        rate: float = 3.0,
        seed: int = 1,
        run_id: str = "run",
        start: float = 0.0,
        keep_prompts: bool = False,
        drafter: Drafter | None = None,
        lengths: tuple[int, int] = (2, 7),
        **scheduler: Any,
    ) -> None:
        """``lengths``: of answers, from and to."""
        settings = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "target_itl_ms": 0.0, **scheduler}
        self.config = Config(
            scheduler=SchedulerConfig(**settings), cache=CacheConfig(block_size=16), limits=LimitsConfig()
        )
        self.runner = SimulatedRunner(SPEED, info=replace(INFO, max_drafts=0 if drafter is None else 4))
        self._lengths = lengths
        self.clock = self.runner.clock
        self.clock.time = start
        self.reachable = True
        self.who = "anna"
        self.leaves: list[tuple[str, Any]] = []
        self.leave_asked: Asked | None = None
        """The approval that the release waits for; None where one person is enough."""
        self.sets: list[tuple[dict[str, Any], float | None]] = []
        self.path = folder / f"{run_id}.sqlite"
        self._random, self._gaps = np.random.default_rng(seed), np.random.default_rng(seed + 1)
        self._rate = rate
        self._number = 0
        self._arrivals: deque[float] = deque()
        self.writer = LedgerWriter(self.path, header_of(self.config, self.runner, run_id))
        self.writer._stopping.set()  # from here on it is written where the test asks for it
        self.writer._thread.join()
        now = whole_microseconds(self.clock.now)
        recorder = Recorder(
            self.writer.put,
            clock_base=0,
            block_size=16,
            prefix_caching=True,
            keep_prompts=keep_prompts,
            controls=controls_of(self.config),
        )
        self.core = EngineCore(
            runner=self.runner,
            controls=controls_of(self.config),
            cache=self.config.cache,
            clock=now,
            eos_token_ids=frozenset({999}),
            max_model_len=512,
            recorder=recorder,
            drafter=drafter,
        )

    def close(self) -> None:
        self.writer._flush()
        self.writer._connection.close()
        self.writer._let_go()

    @property
    def now(self) -> float:
        return EPOCH + self.clock.time

    def advance(self, seconds: float) -> None:
        until = self.clock.time + seconds

        def source():
            while self.clock.time < until:
                self._arrive()
                yield min(self._arrivals[0] if self._arrivals else until, until)

        drive(self.core, source(), self.clock, self._after_step)

    def _after_step(self, result: Any) -> None:
        if result.computed:
            self.clock.time += SPEED.gap

    def _arrive(self) -> None:
        now = self.clock.time
        while self._rate and (not self._arrivals or self._arrivals[-1] <= now):
            last = self._arrivals[-1] if self._arrivals else now
            self._arrivals.append(last + float(self._gaps.exponential(1 / self._rate)))
        while self._arrivals and self._arrivals[0] <= now:
            self._number += 1
            length = int(self._random.integers(*self._lengths))
            self.core.add_request(
                Request(
                    request_id=f"r{self._number}",
                    prompt_token_ids=tuple(int(x) for x in self._random.integers(1, 900, 40)),
                    sampling=SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True),
                    arrival_time=self._arrivals.popleft(),
                    tenant="ab"[self._number % 2],
                )
            )

    def stop_traffic(self) -> None:
        self._rate = 0.0
        self._arrivals.clear()

    # --- Server

    def policy(self) -> dict[str, Told]:
        if not self.reachable:
            raise OutOfReach("nobody answers")
        state = self.core.controls.state
        set_by = {name: change for change in state.changes for name in change.values}
        told = {}
        for name, value in msgspec.to_builtins(state.controls).items():
            change = set_by.get(name)
            left = None if change is None or change.expires_at is None else change.expires_at - self.clock.time
            told[name] = (
                Told(value=value)
                if change is None
                else Told(value=value, set_by=change.set_by, who=change.who, why=change.why, expires_in_seconds=left)
            )
        return {name: each for name, each in told.items() if name != "epoch"}

    def set(self, values: Mapping[str, Any], *, why: str, seconds: float | None) -> dict[str, Told]:
        if not self.reachable:
            raise OutOfReach("nobody answers")
        self.sets.append((dict(values), seconds))
        self.change(values, why=why, seconds=seconds, who=self.who)
        return self.policy()

    def change(
        self, values: Mapping[str, Any], *, why: str, seconds: float | None, who: str, set_by: SetBy = SetBy.PERSON
    ) -> None:
        answers: list[Any] = []
        expires = None if seconds is None else round(self.clock.time + seconds, 6)
        change = ControlChange(values=dict(values), set_by=set_by, who=who, why=why, expires_at=expires)
        self.core.set_controls(change, answers.append)
        self._after_step(self.core.step())
        if isinstance(answers[0], str):
            raise ReleaseError(answers[0])

    def place(self) -> Place:
        return PLACE

    def leave(self, subject: str, values: Mapping[str, Sequence[Any]], *, why: str) -> str:
        if not self.reachable:
            raise OutOfReach("nobody answers")
        self.leaves.append((subject, dict(values)))
        if self.leave_asked is not None:
            return self.leave_asked.waits_for
        return ""

    def end_leave(self, subject: str, *, why: str) -> None:
        self.leaves.append((subject, "ended"))

    def ledger(self) -> LedgerReader:
        if not self.reachable:
            raise OutOfReach("nobody answers")
        self.writer._flush()
        return LedgerReader(self.path)
