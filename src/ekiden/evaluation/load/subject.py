"""Whatever can be given a workload: an engine in this process, a server at an address, a simulated engine."""

from collections.abc import Callable
from typing import Protocol

from ekiden.evaluation.results import ArmRun
from ekiden.evaluation.workloads.offer import Workload


class Subject(Protocol):
    """One arm, ready to serve. It begins each run empty and warm: nothing cached, nothing queued."""

    def serve(self, workload: Workload, *, on_answer: Callable[[], None] = lambda: None) -> ArmRun:
        """Offer the workload in open loop and return when its last answer has ended. Arm, block and position are the
        caller's to fill in.

        A run in which 1 % of the requests were sent later than 1 % of the TTFT objective is returned as void.
        Raises KeyboardInterrupt as it comes, with nothing left running.
        """
        ...

    def close(self) -> None: ...
