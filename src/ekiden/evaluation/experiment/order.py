"""Which arm serves which block when.

Within a block the arms come in a random order and then in the same order backwards (ABBA for two arms), so that a
machine that drifts evenly favours nobody. Blocks come in random order. What differs between workloads in the engine
itself, such as its threads, is kept together, because a model is loaded for each.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

from ekiden.evaluation.plan.model import Plan
from ekiden.evaluation.plan.read import workloads_of
from ekiden.evaluation.plan.store import RunKey
from ekiden.evaluation.workloads.offer import Kind
from ekiden.evaluation.workloads.source import Split
from ekiden.evaluation.workloads.spec import WorkloadSpec

AGAIN = "again"
"""The candidate a second time, as an arm of its own: what differs between the two is noise."""


class DueRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is still to be made: ``position`` is its place within the block."""

    workload: WorkloadSpec
    block: int
    position: int
    arm: str

    @property
    def key(self) -> RunKey:
        return RunKey(self.workload.name, self.block, self.position, self.arm)


def candidate_of(plan: Plan) -> str:
    return next(name for name, arm in plan.arms.items() if arm.role == "candidate")


def first_workload(plan: Plan) -> WorkloadSpec:
    """The first of kind normal, which calibration, tuning and A against A use."""
    return next((spec for spec in plan.workloads if spec.kind is Kind.NORMAL), plan.workloads[0])


def due_in(plan: Plan, split: Split) -> list[DueRun]:
    """All runs of a split: on confirm all blocks of the plan; on dev those of the workloads on which the candidate must
    be better, and the candidate against itself."""
    if split == "confirm":
        blocks = {spec.name: spec.blocks or plan.confirm.blocks for spec in plan.workloads}
        return due_runs(plan, list(plan.arms), blocks, seed=plan.confirm.seed)
    superior = [metric for metric in plan.metrics if metric.critical and metric.success_condition is not None]
    judged = {name for metric in superior for name in workloads_of(metric, plan)}
    blocks = {spec.name: plan.dev_blocks for spec in plan.workloads if spec.name in judged}
    return [*due_runs(plan, list(plan.arms), blocks, seed=plan.confirm.seed + 1), *_against_itself(plan)]


def _against_itself(plan: Plan) -> list[DueRun]:
    """A against A: in blocks of their own, after those of dev, each turned the other way round from the one before."""
    runs = []
    for block in range(plan.dev_blocks, 2 * plan.dev_blocks):
        names = [candidate_of(plan), AGAIN] if block % 2 else [AGAIN, candidate_of(plan)]
        order = [*names, *reversed(names)]
        spec = first_workload(plan)
        runs += [DueRun(workload=spec, block=block, position=at, arm=name) for at, name in enumerate(order)]
    return runs


def due_runs(plan: Plan, arms: Sequence[str], blocks: Mapping[str, int], *, seed: int) -> list[DueRun]:
    """Every run of every block in the order in which they are made; ``blocks`` is the number for each workload."""
    source = random.Random(seed)
    workloads = [workload for workload in plan.workloads if blocks.get(workload.name)]
    of_engine = {workload.name: msgspec.json.encode(workload.engine, order="sorted") for workload in workloads}
    whole = [(workload, block) for workload in workloads for block in range(blocks[workload.name])]
    source.shuffle(whole)
    whole.sort(key=lambda pair: of_engine[pair[0].name])  # stable: within one engine the random order stays
    due = []
    for _, group in groupby(whole, key=lambda pair: of_engine[pair[0].name]):
        for workload, block in group:
            serving = arms_of(workload, arms)
            source.shuffle(serving)
            due += [
                DueRun(workload=workload, block=block, position=position, arm=arm)
                for position, arm in enumerate([*serving, *reversed(serving)])
            ]
    return due


def arms_of(workload: WorkloadSpec, arms: Sequence[str]) -> list[str]:
    """The arms that serve a workload: those it names, or all of them."""
    return [arm for arm in arms if not workload.arms or arm in workload.arms]
