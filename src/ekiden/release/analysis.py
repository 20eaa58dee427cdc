"""What the pairs of a canary say: after each pair whether to go on, and at the horizon whether it may be promoted.

Intervals, and the randomisation p-value beside them, are those of the evaluation: the pair is the unit.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from ekiden.evaluation.analysis.statistics import Estimate, PooledArm, compare
from ekiden.evaluation.plan.conditions import Condition
from ekiden.release.eprocess import EProcess
from ekiden.release.figures import METRICS, BlockFigures, part_of
from ekiden.release.plan import Metric, ReleasePlan


class AnalysisPhase(StrEnum):
    """As in Argo Rollouts. ``ERROR`` is missing data."""

    RUNNING = "Running"
    SUCCESSFUL = "Successful"
    FAILED = "Failed"
    ERROR = "Error"
    INCONCLUSIVE = "Inconclusive"


class PairFigures(msgspec.Struct, frozen=True, kw_only=True):
    candidate: BlockFigures
    baseline: BlockFigures


class MetricResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A metric at the horizon. ``value`` is what its conditions call ``result``; the bounds are one-sided each."""

    name: str
    phase: AnalysisPhase
    message: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    candidate: float | None = None
    baseline: float | None = None
    p_value: float | None = None
    formula: str = ""


class AnalysisRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    phase: AnalysisPhase
    message: str
    metric_results: list[MetricResult] = []
    e_value: float = 1.0


def looked_at(plan: ReleasePlan, pairs: Sequence[PairFigures]) -> AnalysisRun:
    """After any pair: Failed for harm, Error for missing data, else Running. This is what may be looked at early."""
    seen = e_process(plan, pairs)
    if (lacking := _lacking(plan, pairs)) is not None:
        return AnalysisRun(phase=AnalysisPhase.ERROR, message=lacking, e_value=seen.value)
    if (gross := _gross(plan, pairs)) is not None:
        return AnalysisRun(phase=AnalysisPhase.FAILED, message=gross, e_value=seen.value)
    phase = AnalysisPhase.FAILED if seen.alarms else AnalysisPhase.RUNNING
    return AnalysisRun(phase=phase, message=str(seen), e_value=seen.value)


def at_the_horizon(plan: ReleasePlan, pairs: Mapping[int, PairFigures]) -> AnalysisRun:
    """The verdict over all pairs, by their numbers."""
    early = looked_at(plan, list(pairs.values()))
    if early.phase is not AnalysisPhase.RUNNING:
        return early
    results = [_judged(plan, metric, pairs) for metric in plan.metrics]
    phases = [each.phase for each in results]
    worst = next(
        (phase for phase in (AnalysisPhase.ERROR, AnalysisPhase.FAILED, AnalysisPhase.INCONCLUSIVE) if phase in phases),
        AnalysisPhase.SUCCESSFUL,
    )
    told = "; ".join(each.message for each in results if each.phase is worst)
    return AnalysisRun(phase=worst, message=told, metric_results=results, e_value=early.e_value)


def e_process(plan: ReleasePlan, pairs: Sequence[PairFigures]) -> EProcess:
    """On the share of requests that missed their objectives."""
    shares = [(pair.candidate.missed_share, pair.baseline.missed_share) for pair in pairs]
    known = [(ours, theirs) for ours, theirs in shares if ours is not None and theirs is not None]
    return EProcess.of(known, alpha=plan.canary.alpha)


def gross_harm(plan: ReleasePlan, blocks: Sequence[BlockFigures]) -> str | None:
    """Why some of the candidate's blocks, by themselves, are reason to go back; None if they are not."""
    for metric in plan.metrics:
        if metric.block_failure_condition is None:
            continue
        condition = Condition.parse(metric.block_failure_condition)
        parts = [part for block in blocks if (part := part_of(metric.name, block)) is not None]
        values = [METRICS[metric.name].pooled([part]) for part in parts]
        met = [value for value in values if value is not None and condition.holds(value)]
        if len(met) > metric.failure_limit:
            return (
                f"{metric.name} was {met[-1]:.3g} in a block of the candidate, which meets {condition}, and "
                f"failureLimit is {metric.failure_limit}"
            )
    return None


def lacking_data(plan: ReleasePlan, block: BlockFigures) -> str | None:
    """Why a block is missing data; None if it is not."""
    least = plan.canary.least_requests
    if block.offered >= least:
        return None
    return f"a block had {block.offered} requests, and least_requests is {least}: missing data fails"


def _gross(plan: ReleasePlan, pairs: Sequence[PairFigures]) -> str | None:
    return gross_harm(plan, [pair.candidate for pair in pairs])


def _lacking(plan: ReleasePlan, pairs: Sequence[PairFigures]) -> str | None:
    blocks = [block for pair in pairs for block in (pair.candidate, pair.baseline)]
    return next((told for block in blocks if (told := lacking_data(plan, block)) is not None), None)


def _judged(plan: ReleasePlan, metric: Metric, pairs: Mapping[int, PairFigures]) -> MetricResult:
    definition = METRICS[metric.name]
    ours = _arm(metric, {number: pair.candidate for number, pair in pairs.items()})
    theirs = _arm(metric, {number: pair.baseline for number, pair in pairs.items()})
    found = compare(ours, theirs, sorted(pairs), confidence=1 - plan.canary.alpha, seed=plan.canary.seed)
    low, high = _never_seen(found, ours, theirs, plan.canary.alpha)
    told = MetricResult(
        name=metric.name,
        phase=AnalysisPhase.INCONCLUSIVE,
        message="",
        value=found.value,
        low=low,
        high=high,
        candidate=found.candidate,
        baseline=found.baseline,
        p_value=found.p_value,
        formula=definition.formula,
    )
    if found.missing:
        message = f"{metric.name}: {found.notes.get('en', 'no data')}; missing data fails"
        return msgspec.structs.replace(told, phase=AnalysisPhase.ERROR, message=message)
    if low is None or high is None:
        return msgspec.structs.replace(told, message=f"{metric.name}: {found.notes.get('en', 'not estimable')}")
    reached = f"{metric.name} is {_shown(found.value)} (from {_shown(low)} to {_shown(high)})"
    success, failure = metric.success_condition, metric.failure_condition
    if Condition.parse(success).holds_for_all(low, high):
        return msgspec.structs.replace(
            told, phase=AnalysisPhase.SUCCESSFUL, message=f"{reached}, all of which meets {success}"
        )
    if failure is not None and Condition.parse(failure).holds_for_all(low, high):
        return msgspec.structs.replace(
            told, phase=AnalysisPhase.FAILED, message=f"{reached}, all of which meets {failure}"
        )
    return msgspec.structs.replace(told, message=f"{reached}, of which not all meets {success}")


def _never_seen(found: Estimate, ours: PooledArm, theirs: PooledArm, alpha: float) -> tuple[float | None, float | None]:
    """The bounds. Where neither arm had a single case of a share, no resampling of blocks has one either, and yet so
    many requests rule out only shares over 1 - alpha^(1/n)."""
    low, high = found.comparison().low, found.comparison().high
    if found.scale != "difference" or found.candidate != 0 or found.baseline != 0 or low is None or high is None:
        return low, high
    most = [1 - alpha ** (1 / max(1, sum(part.per for [part] in arm.parts.values()))) for arm in (ours, theirs)]
    return min(low, -most[1]), max(high, most[0])


def _arm(metric: Metric, blocks: Mapping[int, BlockFigures]) -> PooledArm:
    parts = {number: part_of(metric.name, block) for number, block in blocks.items()}
    return PooledArm(METRICS[metric.name], {number: [part] for number, part in parts.items() if part is not None})


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"
