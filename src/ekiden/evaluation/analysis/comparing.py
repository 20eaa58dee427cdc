"""All comparisons of one evaluation, each made once: the candidate against every other arm, by metric and workload."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ekiden.evaluation.analysis.metric import MetricDef
from ekiden.evaluation.analysis.statistics import Estimate, PooledArm, compare, lacking, whole_blocks
from ekiden.evaluation.outcome import Label
from ekiden.evaluation.plan.model import Metric, Plan, WorkloadSpec
from ekiden.evaluation.results import ArmRun
from ekiden.evaluation.workloads.offer import Kind


@dataclass(slots=True)
class Comparisons:
    """The runs of a plan, and what comparing them gives."""

    plan: Plan
    runs: Sequence[ArmRun]
    metrics: Mapping[str, MetricDef]
    label: Label
    _arms: dict[tuple[str, str, str], PooledArm] = field(default_factory=dict)
    _found: dict[tuple[str, str, str], Estimate] = field(default_factory=dict)

    @property
    def candidate(self) -> str:
        return next(name for name, arm in self.plan.arms.items() if arm.role == "candidate")

    def against(self, workload: str, role: str = "baseline") -> list[str]:
        """The arms of a role that serve the workload."""
        named = self.spec(workload).arms
        return [name for name, arm in self.plan.arms.items() if arm.role == role and (not named or name in named)]

    def spec(self, workload: str) -> WorkloadSpec:
        return next(spec for spec in self.plan.workloads if spec.name == workload)

    def has_candidate(self, workload: str) -> bool:
        named = self.spec(workload).arms
        return not named or self.candidate in named

    def workloads_of(self, metric: Metric) -> list[str]:
        """Those that the metric names, else all of kind normal."""
        named = metric.workloads or [spec.name for spec in self.plan.workloads if spec.kind is Kind.NORMAL]
        return [name for name in named if self.has_candidate(name)]

    def planned_blocks(self, workload: str) -> int:
        if self.label is Label.EXPLORATORY:
            return self.plan.dev_blocks
        return self.spec(workload).blocks or self.plan.confirm.blocks

    def of(self, arm: str, workload: str) -> list[ArmRun]:
        return [run for run in self.runs if run.arm == arm and run.workload == workload]

    def estimate(self, metric: str, workload: str, baseline: str) -> Estimate:
        """Candidate against ``baseline``. Raises KeyError for a metric that no analysis knows."""
        key = (metric, workload, baseline)
        if key not in self._found:
            self._found[key] = self._estimated(self.metrics[metric], workload, baseline)
        return self._found[key]

    def best_baseline(self, metric: str, workload: str) -> str | None:
        """The baseline with the best value of this metric: what falsifiers and predictions are judged against, since
        a gain over a weaker one says nothing about the mechanism. None where none has a value."""
        up = self.metrics[metric].direction == "up"
        known = {
            name: value
            for name in self.against(workload)
            if (value := self.estimate(metric, workload, name).baseline) is not None
        }
        return max(known, key=lambda name: known[name] if up else -known[name]) if known else None

    def _estimated(self, metric: MetricDef, workload: str, baseline: str) -> Estimate:
        ours, theirs = self.of(self.candidate, workload), self.of(baseline, workload)
        blocks = whole_blocks(ours, theirs)
        if not blocks:
            who = {"en": "no block was run by both arms", "ja": "両方の構成が揃ったブロックがない"}
            return lacking(who, metric.scale)
        if metric.pair_value is not None:
            return _of_pair(metric, ours, theirs, blocks)
        return compare(
            self._pooled(metric, self.candidate, workload),
            self._pooled(metric, baseline, workload),
            blocks,
            confidence=self.plan.confirm.confidence,
            seed=self.plan.confirm.seed,
        )

    def _pooled(self, metric: MetricDef, arm: str, workload: str) -> PooledArm:
        key = (metric.name, workload, arm)
        if key not in self._arms:
            self._arms[key] = PooledArm.of(metric, self.of(arm, workload), self.plan.objectives)
        return self._arms[key]


def _of_pair(metric: MetricDef, ours: Sequence[ArmRun], theirs: Sequence[ArmRun], blocks: Sequence[int]) -> Estimate:
    """What comparing the two arms' answers gave: a count of what happened, with no chance about it."""
    assert metric.pair_value is not None
    kept = set(blocks)
    found = metric.pair_value([run for run in ours if run.block in kept], [run for run in theirs if run.block in kept])
    if found.value is None:
        nothing = {"en": "no answers could be compared", "ja": "比較できる回答がない"}
        return lacking(nothing, "share")
    notes = {
        "en": f"{found.compared} answers compared" + (f"; {found.first_difference}" if found.first_difference else ""),
        "ja": f"{found.compared} 件の回答を比較" + (f"；{found.first_difference}" if found.first_difference else ""),
    }
    return Estimate(
        value=found.value,
        low=found.value,
        high=found.value,
        blocks=len(blocks),
        candidate=None,
        baseline=None,
        notes=notes,
        scale="share",
    )
