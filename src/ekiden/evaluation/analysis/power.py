"""How many blocks the wanted certainty takes, from the noise that A against A shows.

The calculation is that of a one-sided t test on the blocks' log-ratios: with n blocks whose log-ratios have the
standard deviation s, a true effect that lies d beyond the threshold is found with the probability that a noncentral t
with n - 1 degrees of freedom and noncentrality d sqrt(n) / s exceeds the central one's quantile.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from ekiden.evaluation.analysis.comparing import Comparisons
from ekiden.evaluation.analysis.metric import MetricDef
from ekiden.evaluation.analysis.statistics import Estimate, PooledArm, Words, block_sd, compare, whole_blocks
from ekiden.evaluation.analysis.verdict import Thresholds
from ekiden.evaluation.plan.conditions import Condition
from ekiden.evaluation.plan.model import Metric, Objectives
from ekiden.evaluation.results import ArmRun
from ekiden.evidence.extras import needed

MOST_BLOCKS: Final = 1_000
LEAST_BLOCKS: Final = 3


def blocks_needed(noise_sd: float, effect: float, confidence: float, power: float) -> int | None:
    """The least number of blocks. ``noise_sd`` is the standard deviation of a block's log-ratio, ``effect`` the true
    ratio beyond the threshold, such as 1.1: to tell 1.1 from 1, or 1.21 from 1.1, takes as many.

    None where no number up to MOST_BLOCKS does, as for an effect of 1. Raises ValueError for what is no probability
    and for an effect that is not positive.
    """
    if not (0 < confidence < 1 and 0 < power < 1):
        raise ValueError(f"confidence and power lie between 0 and 1, not {confidence} and {power}")
    if effect <= 0 or noise_sd < 0:
        raise ValueError(f"an effect is a positive ratio and noise is not negative; got {effect} and {noise_sd}")
    return blocks_for(noise_sd, abs(math.log(effect)), confidence, power)


def blocks_for(noise_sd: float, distance: float, confidence: float, power: float) -> int | None:
    """As :func:`blocks_needed`, of a distance on the scale of the noise: a log-ratio, or a plain difference."""
    stats = needed("scipy.stats", "evaluate")
    if distance == 0:
        return None
    if noise_sd == 0:
        return LEAST_BLOCKS
    for count in range(LEAST_BLOCKS, MOST_BLOCKS + 1):
        bar = stats.t.ppf(confidence, count - 1)
        found = stats.nct.sf(bar, count - 1, distance * math.sqrt(count) / noise_sd)
        if found >= power:
            return count
    return None


def against_itself(metric: MetricDef, runs: Iterable[ArmRun], objectives: Objectives, **how: float) -> Estimate | None:
    """A against A within one arm's runs on one workload: the runs at odd places of each block against those at even
    ones. Every block is turned the other way round from the one before, so that a drift within blocks cancels out.
    None for a metric of pairs and where no block has two runs. ``how`` has ``confidence`` and ``seed``.
    """
    if metric.of_run is None:
        return None
    halves: tuple[list[ArmRun], list[ArmRun]] = ([], [])
    of_block: dict[int, list[ArmRun]] = {}
    for run in sorted(runs, key=lambda run: (run.block, run.position)):
        of_block.setdefault(run.block, []).append(run)
    for turn, own in enumerate(of_block.values()):
        for place, run in enumerate(own[: len(own) // 2 * 2]):
            halves[(place + turn) % 2].append(run)
    blocks = whole_blocks(*halves)
    if not blocks:
        return None
    first, second = (PooledArm.of(metric, half, objectives) for half in halves)
    return compare(first, second, blocks, confidence=float(how["confidence"]), seed=int(how["seed"]))


def noise_of(
    comparisons: Comparisons, metric: MetricDef, workload: str, noise_runs: Sequence[ArmRun]
) -> list[Estimate]:
    """A against A on a workload: two arms of ``noise_runs`` (the same settings run as if they were two) where they
    have it, else each arm's runs against themselves."""
    how = {"confidence": comparisons.plan.confirm.confidence, "seed": comparisons.plan.confirm.seed}
    own = [run for run in noise_runs if run.workload == workload]
    names = sorted({run.arm for run in own})
    if len(names) == 2 and metric.of_run is not None:
        first, second = ([run for run in own if run.arm == name] for name in names)
        blocks = whole_blocks(first, second)
        if blocks:
            arms = [PooledArm.of(metric, runs, comparisons.plan.objectives) for runs in (first, second)]
            return [compare(arms[0], arms[1], blocks, confidence=float(how["confidence"]), seed=int(how["seed"]))]
    serving = [comparisons.candidate, *comparisons.against(workload)]
    found = (
        against_itself(metric, comparisons.of(arm, workload), comparisons.plan.objectives, **how) for arm in serving
    )
    return [one for one in found if one is not None]


def blocks_sentence(
    comparisons: Comparisons, metric: Metric, workload: str, noise: Sequence[Estimate], *, halved: bool
) -> Words | None:
    """How many blocks the metric needs on this workload; None where there is no noise figure or nothing to find.
    ``halved``: the noise is that of single runs, and a comparison pools two of each arm, so it is 1 / sqrt(2) of it."""
    spreads = [sd for one in noise if (sd := block_sd(one)) is not None]
    if not spreads:
        return None
    scale = noise[0].scale
    sd = math.sqrt(sum(one**2 for one in spreads) / len(spreads)) / (math.sqrt(2) if halved else 1)
    threshold = _end(Thresholds.of(metric, scale).success)
    if threshold is None or (scale == "ratio" and threshold <= 0):
        return None
    confirm = comparisons.plan.confirm
    distance = abs(math.log(threshold)) if scale == "ratio" else abs(threshold)
    count = blocks_for(sd, distance, confirm.confidence, confirm.power)
    planned = comparisons.spec(workload).blocks or confirm.blocks
    place = f"{metric.name} on {workload}"
    shown = f"{sd:.1%}" if scale == "ratio" else f"{sd:.3g}"
    if count is None:
        return {
            "en": f"{place}: no number of blocks up to {MOST_BLOCKS} tells {threshold:g} from no difference at a noise "
            f"of {shown} per block",
            "ja": f"{workload} の {metric.name}：ブロックあたりの雑音 {shown} では、{MOST_BLOCKS} ブロックまでの"
            f"どの数でも {threshold:g} を差なしと区別できない",
        }
    return {
        "en": f"{place}: about {count} blocks to tell {threshold:g} from no difference (noise {shown} per block, "
        f"confidence {confirm.confidence:g}, power {confirm.power:g}); the plan has {planned}",
        "ja": f"{workload} の {metric.name}：{threshold:g} を差なしと区別するには約 {count} ブロックが必要"
        f"（ブロックあたりの雑音 {shown}、信頼度 {confirm.confidence:g}、検出力 {confirm.power:g}）。"
        f"計画は {planned} ブロック",
    }


def _end(condition: Condition | None) -> float | None:
    """The threshold of a condition with one end."""
    if condition is None:
        return None
    ends = [end for end in (condition.least, condition.most) if math.isfinite(end)]
    return ends[0] if len(ends) == 1 else None
