"""What the checks of a plan are given: the sections that could be read, and the names that it may use."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ekiden.build.config_sources import nearest
from ekiden.evaluation.plan.model import (
    Arm,
    Confirm,
    Decision,
    EngineSettings,
    Falsifies,
    Metric,
    Objectives,
    Predicted,
    Stop,
    WorkloadSpec,
)
from ekiden.evaluation.plan.structure import shown

LEAST_OF_A_WORKLOAD = 3
"""Blocks of a workload that has fewer than the others: the least that gives an interval at all, a wide one."""
LEAST_BLOCKS = 5
"""With fewer no interval over blocks means anything: the signs of 5 blocks agree by chance 1 time in 16."""


def _no_complaint(_spec: WorkloadSpec) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The names that a plan may use. None: any will do."""

    metrics: Mapping[str, str] | None = None
    """``up`` or ``down`` by metric: what is better."""
    sources: Collection[str] | None = None
    changes: Collection[str] | None = None
    check_workload: Callable[[WorkloadSpec], None] = _no_complaint
    """Raises :class:`UserError` for options that a source does not take."""


@dataclass(slots=True, kw_only=True)
class Parts:
    """The sections that could be read, by their names in the plan; and the names that the document holds, faults or
    not."""

    decision: Decision | None = None
    engine: EngineSettings | None = None
    objectives: Objectives | None = None
    arms: dict[str, Arm] = field(default_factory=dict)
    workloads: list[WorkloadSpec] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    confirm: Confirm | None = None
    falsifies: list[Falsifies] = field(default_factory=list)
    predictions: list[Predicted] = field(default_factory=list)
    stop: Stop = field(default_factory=Stop)
    dev_blocks: int = 2
    version: int = 1
    arm_names: frozenset[str] = frozenset()
    workload_names: frozenset[str] = frozenset()

    def serving(self, workload: WorkloadSpec) -> set[str]:
        """Names of the arms that serve it."""
        return set(workload.arms or self.arm_names)

    def role(self, role: str) -> list[str]:
        return [name for name, arm in self.arms.items() if arm.role == role]

    @property
    def arms_complete(self) -> bool:
        return self.arm_names == set(self.arms)


def unknown(where: str, names: Iterable[str], known: Collection[str] | None, what: str = "known") -> list[str]:
    """A fault for each name that is not known."""
    if known is None:
        return []
    others = f"; {what}: {', '.join(sorted(known))}"
    return [
        f"{where} is {shown(name)}, which is not known{nearest(name, known) or others}"
        for name in names
        if name not in known
    ]
