"""How a plan asks for a workload. It stands here, below the plan, because workloads are made from it alone."""

from typing import Any

import msgspec

from ekiden.evaluation.workloads.offer import Kind


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to make a workload. Times and lengths of a trace are scaled to the machine; the factors are reported."""

    name: str
    source: str
    """A name that `ekiden evaluate workloads` lists."""
    kind: Kind
    seconds: float
    """Arrivals of one run of one block."""
    rate: float
    """Mean requests a second after scaling."""
    load: float | None = None
    """Share of the candidate's capacity on this machine. `ekiden evaluate init` measures that and sets ``rate``."""
    length_scale: float = 1.0
    change: list[str] = []
    """Changes of premise, in order, such as ``no-max-tokens``."""
    options: dict[str, Any] = {}
    """What only this source knows."""
    arms: list[str] = []
    """Arms that serve it; all of them if none is named."""
    engine: dict[str, Any] = {}
    """Settings that all arms get here, such as ``threads = 1`` for half the cores."""
    blocks: int | None = None
    """Blocks, where other than ``confirm.blocks``."""
