"""Whether the metrics, falsifiers and predictions of a plan can decide anything."""

import math
from collections.abc import Sequence

from ekiden.evaluation.plan.conditions import condition_at
from ekiden.evaluation.plan.model import Falsifies, Metric, Predicted
from ekiden.evaluation.plan.parts import LEAST_BLOCKS, Known, Parts, unknown
from ekiden.evaluation.workloads.offer import Kind

DIRECTIONS = ("up", "down")


def threshold_faults(parts: Parts, known: Known) -> list[str]:
    """All faults of the metrics, each and together, and of what is expected."""
    faults = [fault for metric in parts.metrics for fault in _metric(parts, metric, known)]
    return faults + _metrics(parts) + _expected(parts, known)


def _metric(parts: Parts, metric: Metric, known: Known) -> list[str]:
    where = f"metrics[{metric.name}]"
    faults = unknown(f"{where}.name", [metric.name], known.metrics)
    if metric.direction not in DIRECTIONS:
        faults.append(f"{where}.direction is {metric.direction!r}; it must be up or down")
    elif known.metrics and known.metrics.get(metric.name, metric.direction) != metric.direction:
        better = "more" if metric.direction == "down" else "less"
        faults.append(f"{where}.direction is {metric.direction!r}; of this metric {better} is better")
    faults += _compared(parts, f"{where}.workloads", metric.workloads)
    faults += _thresholds(where, metric)
    if metric.inconclusive_limit < 0:
        faults.append(f"{where}.inconclusiveLimit is {metric.inconclusive_limit}; it must be at least 0")
    elif parts.confirm and parts.confirm.blocks >= LEAST_BLOCKS > parts.confirm.blocks - metric.inconclusive_limit:
        faults.append(
            f"{where}.inconclusiveLimit is {metric.inconclusive_limit}; of {parts.confirm.blocks} blocks at least "
            f"{LEAST_BLOCKS} must count"
        )
    if metric.critical and not metric.must_have_data:
        faults.append(f"{where}.mustHaveData is false; a critical metric needs its data")
    return faults


def _thresholds(where: str, metric: Metric) -> list[str]:
    success, failure, margin = metric.success_condition, metric.failure_condition, metric.margin
    if margin is not None:
        if success is not None or failure is not None:
            return [f"{where} has a margin and conditions; leave out one of the two"]
        if not 0 <= margin < 1:
            return [f"{where}.margin is {margin}; it must be at least 0 and under 1"]
        return []
    if success is None:
        return [f'{where} has no threshold; add successCondition, such as "result >= 1.1", or a margin']
    faults: list[str] = []
    wanted = condition_at(f"{where}.successCondition", success, faults)
    unwanted = None if failure is None else condition_at(f"{where}.failureCondition", failure, faults)
    if failure is None and metric.critical:
        faults.append(f'{where}.failureCondition is missing; say what would make it fail, such as "result < 1"')
    if wanted and unwanted and wanted.overlaps(unwanted):
        faults.append(f"{where}: {success!r} and {failure!r} can both be met; let them exclude each other")
    if wanted and metric.direction in DIRECTIONS:
        end = wanted.least if metric.direction == "up" else wanted.most
        if math.isinf(end):
            faults.append(f"{where}.successCondition is {success!r}, which is met by worse and worse results; turn it")
    return faults


def _metrics(parts: Parts) -> list[str]:
    faults = []
    if not any(metric.critical for metric in parts.metrics):
        faults.append("metrics: none is critical; mark what decides the verdict with critical = true")
    seen: set[tuple[str, str]] = set()
    all_read = parts.workload_names == {each.name for each in parts.workloads}
    for metric in parts.metrics:
        for workload in metric.workloads or [each.name for each in parts.workloads if each.kind is Kind.NORMAL]:
            if (metric.name, workload) in seen:
                faults.append(f"metrics[{metric.name}] stands there twice for workload {workload}; keep one")
            seen.add((metric.name, workload))
        if not metric.workloads and all_read and not any(each.kind is Kind.NORMAL for each in parts.workloads):
            faults.append(f"metrics[{metric.name}].workloads is empty, and none is of kind normal; name some")
    return faults


def _expected(parts: Parts, known: Known) -> list[str]:
    """Falsifiers and predictions."""
    faults: list[str] = []
    both: tuple[tuple[str, Sequence[Falsifies | Predicted]], ...] = (
        ("falsifies", parts.falsifies),
        ("predictions", parts.predictions),
    )
    for section, expected in both:
        for at, each in enumerate(expected, 1):
            where = f"{section}[{at}]"
            text = each.claim if isinstance(each, Falsifies) else each.text
            if not text.strip():
                faults.append(f"{where} has an empty text; say what is claimed or expected")
            faults += unknown(f"{where}.metric", [each.metric], known.metrics)
            faults += _compared(parts, f"{where}.workload", [each.workload])
            condition_at(f"{where}.condition", each.condition, faults)
    return faults


def _compared(parts: Parts, where: str, names: list[str]) -> list[str]:
    """Whether the named workloads exist, and are served by the candidate and by a baseline."""
    faults = unknown(where, names, parts.workload_names, "workloads of the plan")
    candidates, baselines = set(parts.role("candidate")), set(parts.role("baseline"))
    if not candidates or not baselines or not parts.arms_complete:
        return faults
    for workload in parts.workloads:
        serving = parts.serving(workload)
        if workload.name in names and not (serving & candidates and serving & baselines):
            faults.append(f"{where} names {workload.name}, which candidate and baseline do not both serve")
    return faults
