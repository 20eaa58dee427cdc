"""Specs and blocks of workloads, for the tests of this folder."""

from typing import Any

from ekiden.evaluation.workloads.offer import Workload
from ekiden.evaluation.workloads.source import Split
from ekiden.evaluation.workloads.sources import SOURCES, make
from ekiden.evaluation.workloads.spec import WorkloadSpec


def spec_of(source: str, **fields: Any) -> WorkloadSpec:
    """48 requests of a source in 48 seconds; ten in 100 seconds for a lone client."""
    size = {"seconds": 100.0, "rate": 0.1} if source == "lone-client" else {"seconds": 48.0, "rate": 1.0}
    kind = SOURCES[source].kind if source in SOURCES else "normal"
    return WorkloadSpec(**{"name": "case", "source": source, "kind": kind, **size, **fields})


def made(source: str, *, split: Split = "dev", block: int = 0, seed: int = 1, **fields: Any) -> Workload:
    return make(spec_of(source, **fields), split=split, block=block, seed=seed)
