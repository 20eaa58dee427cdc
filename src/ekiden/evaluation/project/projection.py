"""What a fleet of so many replicas would do at a rate, and how many replicas a rate needs.

Every projection carries the error that the model behind it had against a real run; it does not carry over to hardware
whose coefficients nobody measured.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ekiden.config import Config
from ekiden.evaluation.load.simulated_subject import Prompts, simulated_prompts
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.project.fleet import FleetRun, Replica, serve_fleet
from ekiden.evaluation.project.profile import HardwareProfile
from ekiden.evaluation.project.routers import ROUTERS
from ekiden.evaluation.results import Answered
from ekiden.evaluation.workloads.offer import Workload
from ekiden.evidence.recorded_drafts import AnswerDrafts
from ekiden.measure.percentiles import quantiles

Points = dict[str, float | int] | None
"""``p50, p90, p95, p99, max`` and ``n``; None where there are no values."""

FORMULAS = {
    "attainment": "good / all offered; good: whole, TTFT and TPOT within the objectives; refusals count as bad",
    "goodput": "good requests / seconds of arrivals",
    "imbalance": "the most output tokens of a replica / the mean",
    "busy": "time in steps / time of the run",
}


class Projected(msgspec.Struct, kw_only=True):
    """Figures of a fleet, over all repeats. Times are seconds of virtual time, and include the start with no load."""

    replicas: int
    rate: float
    """Offered requests a second: the mean over the arrivals."""
    requests: int
    attainment: float
    attainment_range: tuple[float, float]
    """The lowest and the highest of the repeats, each of which has arrivals of its own."""
    goodput: float
    output_tokens_per_second: float
    ttft: Points
    tpot: Points
    e2e: Points
    failures: dict[str, int]
    imbalance: float
    busy: list[float]
    """Of each replica, the mean of the repeats."""
    preemptions: int


class Needed(msgspec.Struct, kw_only=True):
    """How many replicas a rate needs; ``replicas`` is None if the most that were allowed did not suffice."""

    replicas: int | None
    target: float
    tried: list[tuple[int, float]]
    """Each number of replicas that was simulated, in that order, with its attainment."""


class Projector:
    """Simulates fleets of one profile on given workloads. ``changed``: settings of the scheduler other than its own;
    ``drafts``: for each workload, what could be guessed ahead of its answers, by the offers' ids."""

    def __init__(
        self,
        profile: HardwareProfile,
        workloads: Sequence[Workload],
        objectives: Objectives,
        *,
        router: str = "least-outstanding",
        changed: dict[str, Any] | None = None,
        prompts: Prompts | None = None,
        drafts: Sequence[Mapping[str, AnswerDrafts]] = (),
        seed: int = 0,
    ) -> None:
        """Raises :class:`ekiden.config.ConfigError` for settings that cannot work."""
        self._profile = profile
        self._config: Config = profile.config(changed)
        self._workloads = workloads
        self._objectives = objectives
        self._router = ROUTERS[router]
        self._seed = seed
        make = prompts or (lambda workload: simulated_prompts(workload, vocab_size=profile.model.vocab_size))
        self._prompts = [make(workload) for workload in workloads]
        self._drafts = drafts or [{}] * len(workloads)

    def fleet(self, replicas: int) -> Projected:
        """The figures of so many replicas."""
        profile = self._profile
        runs = []
        loads = zip(self._workloads, self._prompts, self._drafts, strict=True)
        for number, (workload, prompts, drafts) in enumerate(loads):
            engines = [
                Replica(self._config, profile.speed, profile.info, seed=(self._seed, number, index), drafts=drafts)
                for index in range(replicas)
            ]
            runs.append(serve_fleet(engines, self._router(), workload, prompts))
        return _figures(replicas, self._workloads, runs, self._objectives)

    def needed(
        self, *, most: int = 64, on_point: Callable[[Projected], None] = lambda point: None
    ) -> tuple[Needed, Projected]:
        """The fewest replicas with the objectives' attainment, found by doubling, then halving the interval.

        It takes for granted that more replicas attain no less. The figures are those of that fleet, or of ``most``
        replicas where these do not suffice.
        """
        target, points = self._objectives.attainment, dict[int, Projected]()

        def suffices(count: int) -> bool:
            points[count] = self.fleet(count)
            on_point(points[count])
            return points[count].attainment >= target

        needed = fewest(suffices, most)
        tried = [(count, point.attainment) for count, point in points.items()]
        return Needed(replicas=needed, target=target, tried=tried), points[needed or most]


def fewest(suffices: Callable[[int], bool], most: int) -> int | None:
    """The smallest number from 1 to ``most`` that suffices, by doubling and bisection, each number asked once.

    None when ``most`` does not.
    """
    low, high = 0, 1
    while not suffices(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if suffices(middle):
            high = middle
        else:
            low = middle
    return high


def _figures(
    replicas: int, workloads: Sequence[Workload], runs: Sequence[FleetRun], objectives: Objectives
) -> Projected:
    results = [result for run in runs for result in run.results]
    whole = [result.record for result in results if result.record.failure is None]
    seconds = sum(workload.seconds for workload in workloads)
    good = _good(results, objectives)
    shares = [_good(run.results, objectives) / len(run.results) for run in runs if run.results]
    made = [sum(run.replicas[index].output_tokens for run in runs) for index in range(replicas)]
    tokens = sum(result.record.output_tokens for result in results)
    return Projected(
        replicas=replicas,
        rate=len(results) / seconds,
        requests=len(results),
        attainment=good / len(results) if results else 0.0,
        attainment_range=(min(shares, default=0.0), max(shares, default=0.0)),
        goodput=good / seconds,
        output_tokens_per_second=tokens / (sum(run.seconds for run in runs) or 1.0),
        ttft=quantiles(x for record in whole if (x := record.ttft) is not None),
        tpot=quantiles(x for record in whole if (x := record.tpot) is not None),
        e2e=quantiles(x for record in whole if (x := record.e2e) is not None),
        failures=dict(Counter(r.record.failure for r in results if r.record.failure is not None)),
        imbalance=max(made) * replicas / sum(made) if sum(made) else 1.0,
        busy=[sum(run.replicas[index].busy for run in runs) / len(runs) for index in range(replicas)],
        preemptions=sum(share.preemptions for run in runs for share in run.replicas),
    )


def _good(results: Sequence[Answered], objectives: Objectives) -> int:
    return sum(result.record.meets(objectives.ttft, objectives.tpot) for result in results)
