"""Who pays for a scheduler's speed: the worst tenant, service while tenants wait, slowdowns, and languages.

Jain's index stands only beside these, since it can be near 1 while one tenant of many gets nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations
from math import exp, fsum
from typing import Any, Final

import numpy as np

from ekiden.evaluation.analysis.figures import distribution, in_plan
from ekiden.evaluation.analysis.requests import by_arm_and_workload, good, language_log_ratios, values
from ekiden.evaluation.analysis.service import ServiceGap, bound_of, service_gap, service_over_time, services
from ekiden.evaluation.analysis.subgroups import subgroups
from ekiden.evaluation.outcome import Chart, Curve
from ekiden.evaluation.plan.model import Objectives, Plan
from ekiden.evaluation.results import Answered, ArmRun

MOST_POINTS: Final = 240
"""Of a curve: more cannot be told apart on a page."""


def fairness(plan: Plan, runs: Sequence[ArmRun]) -> list[dict[str, Any]]:
    """A row for each arm on each workload, then a row for each of its subgroups with that one's slowdown.

    Rows are flat, and a row lacks the keys that its workload has nothing for: with one tenant there are none of
    tenants, without pairs none of languages. Names that are metrics have the metric's formula.
    """
    rows = []
    for (arm, workload), own in sorted(by_arm_and_workload(runs).items(), key=lambda item: in_plan(plan, *item[0])):
        results = [result for run in own for result in run.results]
        head = {"workload": workload, "arm": arm}
        whole = _tenants(results, plan.objectives) | _service(own) | _slowdown(results) | _languages(results)
        if whole:
            rows.append(head | {"subgroup": ""} | whole)
        for name, part in subgroups(own).items():
            if slowdown := _slowdown([result for run in part for result in run.results]):
                rows.append(head | {"subgroup": name} | slowdown)
    return rows


def fairness_charts(plan: Plan, runs: Sequence[ArmRun]) -> list[Chart]:
    """For each workload with several tenants: the cumulative difference in service between the two tenants that were
    backlogged together for longest, while both were, as a share of the bound. The same block and the same tenants of
    all arms, each arm's first run of it."""
    charts = []
    grouped = by_arm_and_workload(runs)
    for workload in sorted({workload for _, workload in grouped}, key=lambda name: in_plan(plan, "", name)):
        of_arm = {arm: own for (arm, name), own in grouped.items() if name == workload}
        block = _common_block(of_arm)
        if block is None:
            continue
        first = {
            arm: min((run for run in of_arm[arm] if run.block == block), key=lambda run: run.position)
            for arm in sorted(of_arm, key=lambda arm: in_plan(plan, arm, workload))
        }
        pair = _most_backlogged(list(first.values()))
        if pair is not None:
            charts.append(_chart(workload, block, pair, first))
    return charts


def jain_index(shares: Sequence[float]) -> float | None:
    """(sum of x)^2 / (n x sum of x^2): 1 for equal shares, 1 / n where one has all; None where nobody has any."""
    squares = fsum(share * share for share in shares)
    return fsum(shares) ** 2 / (len(shares) * squares) if squares > 0 else None


def _tenants(results: Sequence[Answered], objectives: Objectives) -> dict[str, Any]:
    offered = Counter(result.tenant for result in results)
    if len(offered) < 2:
        return {}
    served = Counter(result.tenant for result in results if good(result, objectives))
    shares = {tenant: served[tenant] / count for tenant, count in sorted(offered.items())}
    worst = min(shares, key=lambda tenant: shares[tenant])
    return {
        "tenants": len(shares),
        "worst_tenant": worst,
        "worst_tenant_attainment": shares[worst],
        "attainment_gap": max(shares.values()) - shares[worst],
        "jain": jain_index(list(shares.values())),
    }


def _service(runs: Sequence[ArmRun]) -> dict[str, Any]:
    gaps = [gap for run in runs if (gap := service_gap(run)) is not None]
    if not gaps:
        return {}
    largest: ServiceGap = max(gaps, key=lambda gap: gap.share)
    return {
        "service_gap": fsum(gap.share for gap in gaps) / len(gaps),
        "largest_service_gap": largest.share,
        "largest_between": " / ".join(largest.tenants),
        "service_bound": largest.bound,
        "bound_from": largest.bound_from,
    }


def _slowdown(results: Sequence[Answered]) -> dict[str, Any]:
    found = distribution(values(results, "slowdown"), with_points=False)
    if not found.n:
        return {}
    return {
        "slowdowns": found.n,
        "slowdown_p50": found.p50,
        "slowdown_p99": found.p99,
        "slowdown_max": found.max,
    }


def _languages(results: Sequence[Answered]) -> dict[str, Any]:
    """Pairs of the same task. Which language is slower is told, which the metric ``language_gap`` leaves out."""
    ends, firsts = language_log_ratios(results), language_log_ratios(results, "ttft")
    if not ends or not firsts:
        return {}
    e2e = fsum(ends) / len(ends)
    return {
        "language_pairs": len(ends),
        "language_gap": exp(abs(e2e)),
        "other_to_english_e2e": exp(e2e),
        "other_to_english_ttft": exp(fsum(firsts) / len(firsts)),
    }


def _common_block(of_arm: dict[str, list[ArmRun]]) -> int | None:
    """The first block that all arms ran; None where there is none."""
    blocks = [{run.block for run in own} for own in of_arm.values()]
    return min(set.intersection(*blocks), default=None)


def _most_backlogged(runs: Sequence[ArmRun]) -> tuple[str, str] | None:
    """The two tenants that were backlogged together for longest, over all the runs; None if no two ever were."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for run in runs:
        found = services(run)
        for p, q in combinations(sorted(found), 2):
            seconds[p, q] += found[p].seconds_with(found[q])
    pair = max(seconds, key=lambda tenants: seconds[tenants], default=None)
    return pair if pair is not None and seconds[pair] > 0 else None


def _chart(workload: str, block: int, pair: tuple[str, str], runs: dict[str, ArmRun]) -> Chart:
    curves = []
    for arm, run in runs.items():
        found = services(run)
        if pair[0] not in found or pair[1] not in found:
            continue
        times, apart = service_over_time(found[pair[0]], found[pair[1]])
        kept = np.unique(np.linspace(0, len(times) - 1, min(len(times), MOST_POINTS)).astype(int))
        share = apart / bound_of(run)[0]
        curves.append(Curve(name=arm, x=times[kept].tolist(), y=share[kept].tolist()))
    return Chart(
        kind="fairness_time",
        title=f"Service of {pair[0]} less that of {pair[1]} while both wait, on {workload} (block {block})",
        x_label="seconds",
        y_label="share of the bound",
        curves=curves,
    )
