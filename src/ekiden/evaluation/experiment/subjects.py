"""The arms of a plan as things that serve: engines in this process on one loaded model, or other servers.

A model is loaded once for each set of engine settings, because arms must share it: what differs between two arms is
scheduling and nothing else.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from ekiden.build.model import load_model
from ekiden.engine.parts import EngineParts
from ekiden.evaluation.experiment.settings import config_of, resolved
from ekiden.evaluation.load.subject import Subject
from ekiden.evaluation.plan.model import Arm, Plan, WorkloadSpec

MOST_LOADED = 3
"""Models held at once; the one that was used longest ago goes first."""


class Subjects(Protocol):
    """Makes what serves an arm. What it made stays usable until :meth:`close`."""

    def subject(self, arm: Arm, settings: Mapping[str, Any], workload: WorkloadSpec) -> Subject:
        """``settings``: those that tuning chose, over the arm's own."""
        ...

    def lineage(self) -> dict[str, Any]:
        """What the figures are made with: model, software, machine."""
        ...

    def close(self) -> None: ...
