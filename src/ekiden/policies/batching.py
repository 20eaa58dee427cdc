"""When waiting requests may join: the batching policies, from the naive baselines to continuous batching.

All of them run on the same engine; only the answer to "how many may join now" differs.
"""

from dataclasses import dataclass

from ekiden.state.controls import Controls
from ekiden.state.policy import BatchingPolicy, BatchView


@dataclass(frozen=True, slots=True)
class Continuous:
    """Refill at every step: a slot that frees is taken by the next waiting request."""

    name: str = "continuous"
    keeps_finished_rows: bool = False

    def admission_limit(self, view: BatchView) -> int:
        return view.max_num_seqs - view.in_batch

    def next_change(self, view: BatchView) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class Static:
    """Admit up to ``max_num_seqs`` at once, then nobody until the slowest of them has ended.

    The row of a finished sequence costs no compute but its slot stays empty; with ``keeps_finished_rows`` (named
    ``static-padded``) it is computed on, as a naive padded batch does.
    """

    name: str = "static"
    keeps_finished_rows: bool = False

    def admission_limit(self, view: BatchView) -> int:
        return view.max_num_seqs if view.in_batch == 0 else 0

    def next_change(self, view: BatchView) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class Window:
    """Static, but a batch starts only when it is full or its oldest request has waited ``window_seconds``."""

    window_seconds: float
    name: str = "window"
    keeps_finished_rows: bool = False

    def admission_limit(self, view: BatchView) -> int:
        if view.in_batch > 0 or view.oldest_arrival is None:
            return 0
        full = view.waiting >= view.max_num_seqs
        return view.max_num_seqs if full or view.now >= view.oldest_arrival + self.window_seconds else 0

    def next_change(self, view: BatchView) -> float | None:
        if view.in_batch > 0 or view.oldest_arrival is None:
            return None
        return view.oldest_arrival + self.window_seconds


@dataclass(frozen=True, slots=True)
class Sequential:
    """One request at a time."""

    name: str = "sequential"
    keeps_finished_rows: bool = False

    def admission_limit(self, view: BatchView) -> int:
        return 1 if view.in_batch == 0 else 0

    def next_change(self, view: BatchView) -> float | None:
        return None


def batching_policy(controls: Controls) -> BatchingPolicy:
    """The policy in force."""
    match controls.batching:
        case "continuous":
            return Continuous()
        case "window":
            return Window(controls.batch_window_ms / 1000)
        case "sequential":
            return Sequential()
        case name:
            return Static(name=name, keeps_finished_rows=name == "static-padded")
