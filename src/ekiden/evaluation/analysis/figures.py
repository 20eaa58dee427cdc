"""What each arm did on each workload, as numbers: counts, rates, and whole distributions rather than means."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ekiden.evaluation.analysis import costs
from ekiden.evaluation.analysis.metric import Values
from ekiden.evaluation.analysis.metrics import DISTRIBUTIONS, METRICS, PERCENTILES
from ekiden.evaluation.analysis.requests import by_arm_and_workload, faults, num_good, values
from ekiden.evaluation.analysis.subgroups import subgroups
from ekiden.evaluation.outcome import ArmFigures, Distribution
from ekiden.evaluation.plan.model import Objectives, Plan
from ekiden.evaluation.results import ArmRun
from ekiden.measure.percentiles import MIN_VALUES_FOR_P99, MIN_VALUES_FOR_P999, percentiles

POINTS: Final = 101
OF_SUBGROUPS: Final = ("goodput", "slo_attainment", "errors", "output_tokens_per_second", "total_tokens_per_second")
"""The rates that part of the requests has by itself; the machine's time is that of all."""
DISTRIBUTIONS_OF_PART: Final = ("ttft", "tpot", "largest_gap", "e2e", "slowdown")
_LEVELS: Final = (50.0, 90.0, 95.0, 99.0, 99.9)


def arm_figures(plan: Plan, runs: Sequence[ArmRun]) -> list[ArmFigures]:
    """Each arm on each workload in the plan's order, the whole first and then its subgroups. Void runs count for
    nothing."""
    found = []
    for (arm, workload), own in sorted(by_arm_and_workload(runs).items(), key=lambda item: in_plan(plan, *item[0])):
        found.append(_figures(arm, workload, "", own, plan.objectives))
        found += [_figures(arm, workload, name, part, plan.objectives) for name, part in subgroups(own).items()]
    return found


def in_plan(plan: Plan, arm: str, workload: str) -> tuple[int, int]:
    """A sort key: the place of a workload and of an arm in the plan; what it does not name comes last."""
    workloads, arms = [spec.name for spec in plan.workloads], list(plan.arms)
    return (
        workloads.index(workload) if workload in workloads else len(workloads),
        arms.index(arm) if arm in arms else len(arms),
    )


def distribution(found: npt.ArrayLike, *, with_points: bool = True) -> Distribution:
    """The quantiles of some values. ``p99`` needs 299 of them and ``p999`` 2,995; of none there is nothing."""
    array = np.asarray(found, np.float64)
    if not array.size:
        return Distribution(n=0, mean=None, p50=None, p90=None, p95=None, p99=None, p999=None, max=None)
    p50, p90, p95, p99, p999, *points = percentiles(array, [*_LEVELS, *(range(POINTS) if with_points else ())])
    return Distribution(
        n=array.size,
        mean=float(array.mean()),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99 if array.size >= MIN_VALUES_FOR_P99 else None,
        p999=p999 if array.size >= MIN_VALUES_FOR_P999 else None,
        max=float(array.max()),
        points=points,
    )


def _figures(arm: str, workload: str, subgroup: str, runs: Sequence[ArmRun], objectives: Objectives) -> ArmFigures:
    results = [result for run in runs for result in run.results]
    arrays = {
        name: np.array(values(results, name), np.float64)
        for name in (DISTRIBUTIONS_OF_PART if subgroup else DISTRIBUTIONS)
    }
    return ArmFigures(
        arm=arm,
        workload=workload,
        subgroup=subgroup,
        offered=len(results),
        good=sum(num_good(run, objectives) for run in runs),
        failures=faults(results, objectives),
        seconds=sum(run.arrival_seconds for run in runs),
        scalars=(
            {name: METRICS[name].value(runs, objectives) for name in OF_SUBGROUPS}
            if subgroup
            else _scalars(runs, arrays, objectives)
        ),
        distributions={name: distribution(array, with_points=not subgroup) for name, array in arrays.items()},
    )


def _scalars(runs: Sequence[ArmRun], arrays: Mapping[str, Values], objectives: Objectives) -> dict[str, float | None]:
    """All metrics in their order, then the sums of costs. Percentiles come from the values that are there already."""
    found = {}
    for name, metric in METRICS.items():
        if name in PERCENTILES:
            parts = [arrays[PERCENTILES[name]]]
            found[name] = metric.pooled(parts) if metric.enough(parts) else None
        elif metric.pair_value is None:
            found[name] = metric.value(runs, objectives)
    return found | costs.totals(runs, objectives)
