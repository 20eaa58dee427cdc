"""Made-up evaluations: plans, and runs whose times come from a seed, so that nothing has to be served."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ekiden.evaluation.analysis.metric import MetricDef, PairFinding, Sums, number_of_values, pooled_percentile
from ekiden.evaluation.plan.model import (
    Arm,
    Confirm,
    Decision,
    EngineSettings,
    Falsifies,
    Metric,
    Objectives,
    Plan,
    WorkloadSpec,
)
from ekiden.evaluation.results import Answered, ArmRun
from ekiden.evaluation.workloads.offer import Kind
from ekiden.measure.figures import RequestRecord

OBJECTIVES = Objectives(ttft=1.0, tpot=0.1)
METRICS: Sequence[Metric] = (
    Metric(
        name="goodput",
        direction="up",
        success_condition="result >= 1.1",
        failure_condition="result < 1",
        critical=True,
    ),
    Metric(name="ttft_p50", direction="down", margin=0.1, critical=True),
    Metric(name="errors", direction="down", margin=0.05, critical=True),
    Metric(name="worst_tenant_attainment", direction="up", margin=0.15, critical=True),
    Metric(name="tokens_equal", direction="up", critical=True),
)


def plan(metrics: Sequence[Metric] = METRICS, *, blocks: int = 8, **changes: Any) -> Plan:
    """Candidate ``continuous`` against ``static`` and ``window`` on a normal and on a misleading workload."""
    parts: dict[str, Any] = {
        "version": 1,
        "decision": Decision(
            question="Does it help?",
            affected="all",
            wrong_result="time",
            known_at_decision_time="lengths",
            simplest_alternative="static",
            owner="me",
        ),
        "engine": EngineSettings(),
        "objectives": OBJECTIVES,
        "arms": {
            "continuous": Arm(role="candidate", settings={"batching": "continuous"}),
            "static": Arm(settings={"batching": "static"}),
            "window": Arm(settings={"batching": "window"}),
        },
        "workloads": [
            WorkloadSpec(name="chat", source="azure-conversation", kind=Kind.NORMAL, seconds=10, rate=2),
            WorkloadSpec(name="equal", source="equal-lengths", kind=Kind.MISLEADING, seconds=10, rate=2),
        ],
        "metrics": list(metrics),
        "confirm": Confirm(blocks=blocks),
        "falsifies": [
            Falsifies(
                claim="the gain comes from refilling",
                workload="equal",
                metric="goodput",
                condition="result > 1.1",
            )
        ],
    }
    return Plan(**(parts | changes))


@dataclass(slots=True)
class Served:
    """One arm of a made-up evaluation. ``pace`` multiplies all its times: 1.2 is 20 % slower."""

    pace: float = 1.0
    starved: str = ""
    """A tenant whose requests are never served."""
    wrong_from: int | None = None
    """From which request on the tokens are wrong."""


def runs(
    arms: dict[str, Served],
    *,
    seed: int,
    blocks: int = 8,
    requests: int = 16,
    noise: float = 0.07,
    workloads: Sequence[str] = ("chat", "equal"),
) -> list[ArmRun]:
    """Every arm twice in each block, ABBA, with a drift over blocks and places and ``noise`` of each run."""
    chance = np.random.default_rng(seed)
    made = []
    for workload in workloads:
        drift = np.cumsum(chance.normal(0, 0.05, blocks))
        for block in range(blocks):
            order = list(arms) if chance.random() < 0.5 else list(arms)[::-1]
            own = chance.lognormal(-0.6, 0.5, requests)
            for place, arm in enumerate(order + order[::-1]):
                mood = np.exp(drift[block] + 0.01 * place + chance.normal(0, noise))
                times = own * mood * arms[arm].pace * chance.lognormal(0, 0.1, requests)
                made.append(_run(arm, arms[arm], workload, block, place, times))
    return made


def _run(arm: str, served: Served, workload: str, block: int, place: int, times: Any) -> ArmRun:
    results = []
    for number, ttft in enumerate(times.tolist()):
        tenant = f"t{number % 4}"
        starved = tenant == served.starved
        token = 8 if served.wrong_from is not None and number >= served.wrong_from else 7
        record = RequestRecord(
            intended=0.0,
            end=ttft + 0.1,
            event_times=[] if starved else [ttft, ttft + 0.05],
            output_tokens=0 if starved else 2,
            failure="deadline" if starved else None,
        )
        results.append(
            Answered(
                id=f"{block}-{number}",
                record=record,
                token_ids=None if starved else (number, token),
                tenant=tenant,
                output_tokens=2,
            )
        )
    return ArmRun(
        arm=arm,
        workload=workload,
        block=block,
        position=place,
        started=0.0,
        seconds=10.0,
        arrival_seconds=10.0,
        workload_digest=f"{workload}{block}",
        results=results,
    )


def _good(answer: Answered, objectives: Objectives) -> bool:
    return answer.record.meets(objectives.ttft, objectives.tpot)


def _goodput(run: ArmRun, objectives: Objectives) -> Sums:
    return Sums(sum(_good(answer, objectives) for answer in run.results), run.arrival_seconds)


def _errors(run: ArmRun, objectives: Objectives) -> Sums:
    return Sums(sum(answer.record.failure is not None for answer in run.results), len(run.results))


def _ttft(run: ArmRun, objectives: Objectives) -> Any:
    return np.array([answer.record.ttft for answer in run.results if answer.record.event_times])


def _tenants(run: ArmRun, objectives: Objectives) -> Any:
    table = np.zeros((4, 2))
    for answer in run.results:
        table[int(answer.tenant[1:])] += (_good(answer, objectives), 1)
    return table


def _worst(parts: Sequence[Any]) -> float:
    table = np.sum(parts, axis=0)
    return float((table[:, 0] / table[:, 1]).min())


def _equal(ours: Sequence[ArmRun], theirs: Sequence[ArmRun]) -> PairFinding:
    told = {(run.block, answer.id): answer.token_ids for run in theirs for answer in run.results}
    same, first = [], ""
    for run in ours:
        for answer in run.results:
            other = told.get((run.block, answer.id))
            if answer.token_ids is not None and other is not None:
                same.append(answer.token_ids == other)
                first = first or ("" if same[-1] else f"{answer.id} differs")
    return PairFinding(value=sum(same) / len(same) if same else None, compared=len(same), first_difference=first)


def _defined(name: str, direction: str, **how: Any) -> MetricDef:
    return MetricDef(name=name, formula=name, unit="", direction=direction, **how)


KNOWN = {
    metric.name: metric
    for metric in (
        _defined("goodput", "up", of_run=_goodput),
        _defined("errors", "down", of_run=_errors, scale="difference"),
        _defined("ttft_p50", "down", of_run=_ttft, pooled=pooled_percentile(50)),
        _defined(
            "ttft_p99",
            "down",
            of_run=_ttft,
            pooled=pooled_percentile(99),
            count=number_of_values,
            min_values=299,
        ),
        _defined("worst_tenant_attainment", "up", of_run=_tenants, pooled=_worst, scale="difference"),
        _defined("tokens_equal", "up", pair_value=_equal),
    )
}
"""Small stand-ins for the metrics of the analysis, so that these tests rest on the statistics alone."""
