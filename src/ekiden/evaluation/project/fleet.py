"""A fleet in virtual time: several engine cores, each on a clock of its own, behind one router.

The events are arrivals, and the beginnings of steps. They are taken in the order of their times, arrivals first, so
that a replica's step sees exactly what had come when it began. A router knows of an answer's end from the moment on at
which the step ended, and not before. A fleet of one behaves exactly as one engine under
:func:`ekiden.engine.simulated.simulate`.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ekiden.config import Config
from ekiden.engine.driver import StuckError, VirtualClock
from ekiden.engine.engine_core import StepResult
from ekiden.engine.simulated import NO_NOISE, EngineSpeed, Noise, SimulatedRunner
from ekiden.evaluation.load.requests import Collector, requests_of
from ekiden.evaluation.load.simulated_subject import end_token_of, simulated_core
from ekiden.evaluation.project.routers import Router
from ekiden.evaluation.results import Answered
from ekiden.evaluation.workloads.offer import Workload
from ekiden.evidence.recorded_drafts import AnswerDrafts, RecordedDrafter
from ekiden.state.request import Request
from ekiden.state.runner import RunnerInfo


class Replica:
    """One simulated engine. ``wakes`` is when it steps next: ``inf`` while nothing but an arrival can change that.

    ``drafts``: what could be guessed ahead of the answers, by request id.
    """

    def __init__(
        self,
        config: Config,
        speed: EngineSpeed,
        info: RunnerInfo,
        *,
        noise: Noise = NO_NOISE,
        seed: Sequence[int] = (0,),
        drafts: Mapping[str, AnswerDrafts] = {},
    ) -> None:
        self.model = SimulatedRunner(speed, info=info, noise=noise, seed=seed)
        self._drafts, self._drafter = drafts, RecordedDrafter()
        self.core = simulated_core(config, self.model, self.model, drafter=self._drafter if drafts else None)
        self.wakes = math.inf
        self.requests = 0
        self.output_tokens = 0
        self._gap = speed.gap

    @property
    def clock(self) -> VirtualClock:
        return self.model.clock

    def take(self, request: Request) -> None:
        """A request arrives: an engine that waits steps at once, a busy one when its step has ended."""
        self._drafter.know(request, self._drafts.get(request.request_id))
        self.core.add_request(request)
        self.requests += 1
        self.wakes = max(self.clock.time, request.arrival_time)

    def step(self, sink: Callable[[StepResult], None]) -> None:
        """Take the step that begins at ``wakes``. The sink is called when it has ended, before the clock moves on."""
        self.clock.wait_until(self.wakes)
        result = self.core.step()
        self.output_tokens += sum(len(update.token_ids) for update in result.updates)
        sink(result)
        if result.computed:
            self.clock.time += self._gap
            self.wakes = self.clock.time if self.core.has_work else math.inf
        else:
            self.wakes = math.inf if result.next_change is None else max(self.clock.time, result.next_change)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaShare:
    """What one replica did. ``busy`` is the share of the run's time that it spent in steps."""

    requests: int
    output_tokens: int
    steps: int
    busy: float
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """``seconds``: from the start of the arrivals to the end of the last answer."""

    results: list[Answered]
    seconds: float
    replicas: list[ReplicaShare]


def serve_fleet(
    replicas: Sequence[Replica],
    router: Router,
    workload: Workload,
    prompts: Sequence[Sequence[int]],
    *,
    on_answer: Callable[[], None] = lambda: None,
) -> FleetRun:
    """Serve a workload to its end. Raises :class:`StuckError` when a replica waits for nothing."""
    shown = VirtualClock()
    collector = Collector(workload, prompts, start=0.0, now=shown.now, on_answer=on_answer)
    end_token = end_token_of(replicas[0].model.info)
    requests = requests_of(workload, prompts, 0.0, end_token=end_token)
    todo = deque(sorted(requests, key=lambda request: request.arrival_time))
    outstanding = [0] * len(replicas)
    ends: list[tuple[float, int]] = []
    """Times at which answers end, with their replica, that no router has heard of yet."""
    preemptions = [0] * len(replicas)
    while True:
        index = min(range(len(replicas)), key=lambda each: replicas[each].wakes)
        replica = replicas[index]
        if todo and todo[0].arrival_time <= replica.wakes:
            request = todo.popleft()
            while ends and ends[0][0] <= request.arrival_time:
                outstanding[heapq.heappop(ends)[1]] -= 1
            chosen = router.choose(request, outstanding)
            outstanding[chosen] += 1
            replicas[chosen].take(request)
            continue
        if math.isinf(replica.wakes):
            break

        def sink(result: StepResult, index: int = index, replica: Replica = replica) -> None:
            shown.time = replica.clock.time
            collector(result)
            for update in result.updates:
                if update.terminal:
                    heapq.heappush(ends, (shown.time, index))
                    preemptions[index] += 0 if update.finish is None else update.finish.num_preemptions

        replica.step(sink)
    if waiting := [index for index, each in enumerate(replicas) if each.core.has_work]:
        raise StuckError(f"replicas {waiting} have work, scheduled none of it and wait for nothing")
    seconds = collector.seconds
    shares = [
        ReplicaShare(
            requests=each.requests,
            output_tokens=each.output_tokens,
            steps=each.model.steps,
            busy=each.model.busy_seconds / seconds if seconds else 0.0,
            preemptions=number,
        )
        for each, number in zip(replicas, preemptions, strict=True)
    ]
    return FleetRun(results=collector.results(), seconds=seconds, replicas=shares)
