"""Candidate against baseline on one workload, with what chance alone could have made of it.

A block is the unit: within one, requests share the machine's mood, the arrivals and the queue, so they are not
independent. The figure is that of all runs of an arm together. Its uncertainty comes from drawing whole blocks again
(scipy's bootstrap), the same blocks for both arms. Of that only the standard error is taken, widened by
sqrt(n / (n - 1)) and by Student's t with n - 1 degrees: percentile and BCa intervals promise 95 % and hold 84 to 93 %
at 5 to 12 blocks (docs/decisions/0020-block-bootstrap.md). ``low`` and ``high`` each are one-sided bounds.

A value of 0 has no logarithm. Where an arm's value is 0, in a resample or over all blocks, half of the least that a
block gave takes its place in the bounds, as if half an event had been seen. The ratio itself is told as it is: 0, or
None over a baseline of 0. Two zeros are equal.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ekiden.evaluation.analysis.metric import MetricDef, PooledPercentile, ratio_of_sums
from ekiden.evaluation.outcome import Comparison
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.results import ArmRun
from ekiden.evidence.extras import needed

MIN_BLOCKS: Final = 3
"""With fewer there is no interval. Three are very wide, and hold what they promise."""
RESAMPLES: Final = 1_999
PERMUTATIONS: Final = 9_999
"""Sign flips; up to 13 blocks all of them are tried, so that the p-value is exact."""
MOST_LOG: Final = 700.0
"""Above this the exponential is as good as infinite."""
MOST_WITHOUT_VALUE: Final = 0.05
"""Share of resamples that may have no value before the figure is not estimable."""

Floats = npt.NDArray[np.float64]
Words = dict[str, str]
"""A sentence by language."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A comparison as the verdict needs it: bounds may be infinite, and it is known why a figure is missing."""

    value: float | None
    """The ratio or the difference; None where there is none, or over a baseline of 0."""
    low: float | None
    high: float | None
    blocks: int
    candidate: float | None
    baseline: float | None
    block_values: tuple[float | None, ...] = ()
    p_value: float | None = None
    notes: Words = field(default_factory=dict)
    """Why a figure is missing or how it was had, by language: ``en`` and ``ja``."""
    scale: str = "ratio"
    missing: bool = False
    """Whether data are lacking, rather than too few to say anything."""
    middle: float | None = None
    """The log-ratio, or the difference, that bounds are laid around; None where the bounds are no matter of chance."""
    error: float = 0.0
    """Its standard error over blocks, widened for their number."""

    def at(self, confidence: float) -> tuple[float | None, float | None]:
        """The bounds at another one-sided confidence."""
        if self.middle is None:
            return self.low, self.high
        stats = needed("scipy.stats", "evaluate")
        reach = float(stats.t.ppf(confidence, self.blocks - 1)) * self.error
        low, high = self.middle - reach, self.middle + reach
        if self.scale != "ratio":
            return low, high
        low, high = (math.exp(bound) if bound < MOST_LOG else math.inf for bound in (low, high))
        return (0.0 if self.candidate == 0 else low), (math.inf if self.baseline == 0 else high)

    def comparison(self) -> Comparison:
        """As the report holds it: without infinities."""
        return Comparison(
            ratio=self.value,
            low=_finite(self.low),
            high=_finite(self.high),
            blocks=self.blocks,
            candidate=self.candidate,
            baseline=self.baseline,
            block_ratios=list(self.block_values),
            note=self.notes.get("en", ""),
            p_value=self.p_value,
            scale=self.scale,
        )


@dataclass(slots=True)
class PooledArm:
    """One arm's contributions to one metric on one workload, by block; any multiset of blocks has a value, kept."""

    metric: MetricDef
    parts: dict[int, list[Any]]
    """A block whose contribution cannot be had is not in it."""
    _known: dict[tuple[int, ...], float] = field(default_factory=dict)

    @classmethod
    def of(cls, metric: MetricDef, runs: Iterable[ArmRun], objectives: Objectives) -> "PooledArm":
        """The arm's runs that count, of any blocks."""
        parts = ((block, metric.parts(own, objectives)) for block, own in by_block(runs).items())
        return cls(metric, {block: part for block, part in parts if part is not None})

    def value(self, blocks: Sequence[int]) -> float | None:
        """The pooled value, however few values it rests on."""
        return self.metric.pooled([part for block in blocks for part in self.parts[block]])

    def enough(self, blocks: Sequence[int]) -> bool:
        """Whether that rests on as many values as the metric asks for."""
        return self.metric.enough([part for block in blocks for part in self.parts[block]])

    def values(self, blocks: Sequence[int], drawn: npt.NDArray[np.int64]) -> Floats:
        """Pooled values of resamples: ``drawn`` (resamples, n) are positions in ``blocks``; NaN where there is none.
        Rates and percentiles are had without a loop."""
        counts = (drawn[:, :, None] == np.arange(len(blocks))).sum(axis=1)
        pooled = self.metric.pooled
        if pooled is ratio_of_sums:
            sums = np.array([np.sum(self.parts[block], axis=0) for block in blocks], np.float64)
            amount, per = (counts @ sums).T
            rates: Floats = np.divide(amount, per, out=np.full(len(drawn), math.nan), where=per > 0)
            return rates
        kinds, which = np.unique(counts, axis=0, return_inverse=True)
        if isinstance(pooled, PooledPercentile):
            joined = [np.concatenate(self.parts[block]) for block in blocks]
            resampled: Floats = pooled.resampled(joined, kinds)[which.reshape(-1)]
            return resampled
        found = [self._kept(tuple(np.repeat(blocks, kind).tolist())) for kind in kinds]
        return np.array(found)[which.reshape(-1)]

    def _kept(self, chosen: tuple[int, ...]) -> float:
        if chosen not in self._known:
            self._known[chosen] = _number(self.value(chosen))
        return self._known[chosen]


def by_block(runs: Iterable[ArmRun]) -> dict[int, list[ArmRun]]:
    """Runs of one arm on one workload by their block, in order."""
    found: dict[int, list[ArmRun]] = defaultdict(list)
    for run in runs:
        found[run.block].append(run)
    return dict(sorted(found.items()))


def whole_blocks(candidate: Iterable[ArmRun], baseline: Iterable[ArmRun]) -> list[int]:
    """Blocks in which both arms ran equally often and no run of theirs is void: only then are the two in balance."""
    ours, theirs = by_block(candidate), by_block(baseline)
    return [
        block
        for block, runs in ours.items()
        if len(runs) == len(theirs.get(block, [])) and not any(run.void for run in (*runs, *theirs[block]))
    ]


def compare(
    candidate: PooledArm, baseline: PooledArm, blocks: Sequence[int], *, confidence: float, seed: int
) -> Estimate:
    """The two arms over the given whole blocks. ``confidence`` is that of ``low`` and of ``high``, each by itself."""
    metric = candidate.metric
    having = [block for block in blocks if block in candidate.parts and block in baseline.parts]
    if not having:
        return lacking(
            {"en": "no block has this figure for both arms", "ja": "両方の構成にこの値があるブロックがない"},
            metric.scale,
        )
    ours, theirs = candidate.value(having), baseline.value(having)
    if ours is None or theirs is None:
        notes = {
            "en": f"the {'candidate' if ours is None else 'baseline'} has no value",
            "ja": f"{'候補' if ours is None else '基準'}に値がない",
        }
        return replace(lacking(notes, metric.scale), candidate=ours, baseline=theirs, blocks=len(having))
    singles = np.array([[_number(arm.value([block])) for block in having] for arm in (candidate, baseline)])
    value = _value(ours, theirs, metric.scale)
    found = Estimate(
        value=value,
        low=None,
        high=None,
        blocks=len(having),
        candidate=ours,
        baseline=theirs,
        block_values=tuple(_value(float(a), float(b), metric.scale) for a, b in singles.T),
        scale=metric.scale,
    )
    if not (candidate.enough(having) and baseline.enough(having)):
        return replace(found, value=None, notes=_too_few_values(metric.min_values))
    if len(having) < MIN_BLOCKS:
        return replace(found, notes=_too_few_blocks(len(having)))
    found = replace(found, p_value=flipped_signs(singles, metric, seed=seed))
    return _bounded(found, candidate, baseline, having, singles, confidence=confidence, seed=seed)


def lacking(notes: Words, scale: str = "ratio") -> Estimate:
    """An estimate for data that are not there."""
    return Estimate(
        value=None, low=None, high=None, blocks=0, candidate=None, baseline=None, notes=notes, scale=scale, missing=True
    )


def flipped_signs(singles: Floats, metric: MetricDef, *, seed: int) -> float | None:
    """Randomisation p-value of ``singles`` (2, blocks): the share of ways to swap the arms within blocks in which the
    candidate does at least as well as it did. The statistic is the mean over blocks of (a - b) / (a + b), which needs
    no logarithm of 0, or of a - b for differences. n blocks cannot give less than 2**-n.
    """
    stats = needed("scipy.stats", "evaluate")
    present = singles[:, ~np.isnan(singles).any(axis=0)]
    if present.shape[1] < 2:
        return None

    def statistic(ours: Floats, theirs: Floats, axis: int) -> Any:
        apart = ours - theirs
        if metric.scale == "ratio":
            both = np.abs(ours) + np.abs(theirs)
            apart = np.divide(apart, both, out=np.zeros_like(apart), where=both > 0)
        return apart.mean(axis=axis)

    tested = stats.permutation_test(
        (present[0], present[1]),
        statistic,
        permutation_type="samples",
        vectorized=True,
        n_resamples=PERMUTATIONS,
        alternative="greater" if metric.direction == "up" else "less",
        rng=np.random.default_rng(seed),
    )
    return float(tested.pvalue)


def block_sd(found: Estimate) -> float | None:
    """Standard deviation over blocks of the log-ratios, or of the differences; None if fewer than two can be had."""
    values = [value for value in found.block_values if value is not None and (found.scale != "ratio" or value > 0)]
    if len(values) < 2:
        return None
    return float(np.std(np.log(values) if found.scale == "ratio" else values, ddof=1))


def _bounded(
    found: Estimate,
    candidate: PooledArm,
    baseline: PooledArm,
    blocks: Sequence[int],
    singles: Floats,
    *,
    confidence: float,
    seed: int,
) -> Estimate:
    """The estimate with its bounds."""
    stats = needed("scipy.stats", "evaluate")
    count, is_ratio = len(blocks), found.scale == "ratio"
    assert found.candidate is not None
    assert found.baseline is not None
    floors = _floors(singles) if is_ratio else None
    if is_ratio and floors is None:
        return replace(found, value=1.0, low=1.0, high=1.0, notes=_BOTH_ZERO)

    def apart(ours: Any, theirs: Any) -> Any:
        if floors is None:
            return ours - theirs
        return np.log(np.maximum(ours, floors[0])) - np.log(np.maximum(theirs, floors[1]))

    def statistic(drawn: npt.NDArray[np.int64], axis: int) -> Any:
        rows = np.atleast_2d(drawn)
        given = apart(candidate.values(blocks, rows), baseline.values(blocks, rows))
        without.append(float(np.isnan(given).mean()))
        return np.where(np.isnan(given), middle, given).reshape(np.shape(drawn)[:-1])

    without: list[float] = []
    middle = float(apart(found.candidate, found.baseline))
    drawn = stats.bootstrap(
        (np.arange(count),),
        statistic,
        n_resamples=RESAMPLES,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    if max(without) > MOST_WITHOUT_VALUE:
        return replace(found, value=None, notes=_RESTS_ON_FEW)
    error = float(drawn.standard_error) * math.sqrt(count / (count - 1))
    found = replace(found, middle=middle, error=error, notes=_OVER_ZERO if is_ratio and found.baseline == 0 else {})
    low, high = found.at(confidence)
    return replace(found, low=low, high=high)


def _floors(singles: Floats) -> Floats | None:
    """What stands in for 0, per arm: half of the least positive value of a block, spread over all blocks. An arm that
    has none takes the other's; None if neither has one."""
    least = np.where(singles > 0, singles, math.inf).min(axis=1) / (2 * singles.shape[1])
    known = float(least.min())
    return np.where(np.isfinite(least), least, known) if math.isfinite(known) else None


def _value(ours: float, theirs: float, scale: str) -> float | None:
    if math.isnan(ours) or math.isnan(theirs):
        return None
    if scale == "difference":
        return ours - theirs
    if theirs == 0:
        return 1.0 if ours == 0 else None
    return ours / theirs


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


_OVER_ZERO: Final = {
    "en": "the baseline's value is 0; the bound takes half an event in its place",
    "ja": "基準の値が 0 のため、限界値では代わりに 0.5 件とみなした",
}
_RESTS_ON_FEW: Final = {
    "en": "not estimable: without some of the blocks it has no value",
    "ja": "推定不能：一部のブロックを除くと値が求まらない",
}


_NOWHERE: Final = {"en": "no block has this figure for both arms", "ja": "両方の構成にこの値があるブロックがない"}
_BOTH_ZERO: Final = {"en": "both are 0 in all blocks", "ja": "全ブロックで両方とも 0"}


def _too_few_values(least: int) -> Words:
    return {"en": f"not estimable: fewer than {least} values", "ja": f"推定不能：値が {least} 個に満たない"}


def _too_few_blocks(count: int) -> Words:
    return {
        "en": f"no interval: {count} blocks, and {MIN_BLOCKS} are the least",
        "ja": f"区間なし：ブロックが {count} 個しかない（最少 {MIN_BLOCKS} 個）",
    }
