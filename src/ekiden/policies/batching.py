"""When waiting requests may join: the batching policies, from the naive baselines to continuous batching.

All of them run on the same engine; only the answer to "how many may join now" differs.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ekiden.config import BATCHING
from ekiden.state.controls import Controls


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """The inputs of a batching policy. Times are seconds on the engine's clock."""

    now: float
    in_batch: int
    """Sequences that hold a slot: running, preempted, or finished but kept as padding."""
    waiting: int
    oldest_arrival: float | None
    max_num_seqs: int


class BatchingPolicy:
    keeps_finished_rows = False
    """Whether finished rows are still computed until their whole batch has ended (:mod:`ekiden.policies.padding`)."""

    def admission_limit(self, view: BatchView) -> int:
        """How many waiting requests this policy lets join now; free slots and memory limit them too."""
        raise NotImplementedError

    def next_change(self, view: BatchView) -> float | None:
        """When :meth:`admission_limit` may change without any arrival or departure; None for never."""
        return None


class Continuous(BatchingPolicy):
    """Refill at every step: a slot that frees is taken by the next waiting request."""

    def admission_limit(self, view: BatchView) -> int:
        return view.max_num_seqs - view.in_batch


class Static(BatchingPolicy):
    """Admit up to ``max_num_seqs`` at once, then nobody until the slowest of them has ended.

    The row of a finished sequence costs no compute but its slot stays empty.
    """

    def admission_limit(self, view: BatchView) -> int:
        return view.max_num_seqs if view.in_batch == 0 else 0


class StaticPadded(Static):
    """Static, and finished rows are still computed, as a naive padded batch does."""

    keeps_finished_rows = True


class Window(Static):
    """Static, but a batch starts only when it is full or its oldest request has waited for the window."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def admission_limit(self, view: BatchView) -> int:
        start = self.next_change(view)
        ready = start is not None and (view.waiting >= view.max_num_seqs or view.now >= start)
        return view.max_num_seqs if ready else 0

    def next_change(self, view: BatchView) -> float | None:
        if view.in_batch > 0 or view.oldest_arrival is None:
            return None
        return view.oldest_arrival + self._seconds


class Sequential(BatchingPolicy):
    """One request at a time."""

    def admission_limit(self, view: BatchView) -> int:
        return 1 if view.in_batch == 0 else 0


def batching_policy(controls: Controls) -> BatchingPolicy:
    """The policy in force."""
    return _POLICIES[controls.batching](controls)


_POLICIES: dict[str, Callable[[Controls], BatchingPolicy]] = {
    "continuous": lambda controls: Continuous(),
    "static": lambda controls: Static(),
    "static-padded": lambda controls: StaticPadded(),
    "window": lambda controls: Window(controls.batch_window_ms / 1000),
    "sequential": lambda controls: Sequential(),
}
assert _POLICIES.keys() == set(BATCHING), "the policies of config.py are not those that are made here"
