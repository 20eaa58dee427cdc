"""Which arm serves which block when.

Within a block the arms come in a random order and then in the same order backwards (ABBA for two arms), so that a
machine that drifts evenly favours nobody. Blocks come in random order. What differs between workloads in the engine
itself, such as its threads, is kept together, because a model is loaded for each.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

from ekiden.evaluation.plan.model import Plan, WorkloadSpec


class DueRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is still to be made: ``position`` is its place within the block."""

    workload: WorkloadSpec
    block: int
    position: int
    arm: str

    @property
    def key(self) -> tuple[str, int, int, str]:
        return (self.workload.name, self.block, self.position, self.arm)


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
