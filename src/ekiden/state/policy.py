"""The two questions a scheduling policy answers, as ports. Everything else of the engine is shared by all policies.

*When* may waiting requests join (:class:`BatchingPolicy`), and *who* is next (:class:`WaitingQueue`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ekiden.state.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """What a batching policy may look at. Times are seconds on the engine's clock."""

    now: float
    in_batch: int
    """Sequences that hold a slot: running, preempted, or finished but kept as padding."""
    waiting: int
    oldest_arrival: float | None
    max_num_seqs: int


class BatchingPolicy(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def keeps_finished_rows(self) -> bool:
        """True when finished rows go on being computed until their whole batch has ended."""
        ...

    def admission_limit(self, view: BatchView) -> int:
        """How many waiting requests may join now, slots and memory apart."""
        ...

    def next_change(self, view: BatchView) -> float | None:
        """When :meth:`admission_limit` may change without any arrival or departure; None for never."""
        ...


Weights = Callable[[str], float]
"""A tenant's share of the service under the `fair` order; 1 unless configured."""


class WaitingQueue(Protocol):
    """Waiting sequences in the order in which they are to join. Only :class:`Population` pushes and removes."""

    def push(self, sequence: Sequence) -> None: ...

    def first(self, count: int) -> list[Sequence]:
        """The first ``count`` in order; they stay in the queue."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands. Raises KeyError when it is not here."""
        ...

    def may_pass(self, candidate: Sequence, blocked: Sequence) -> bool:
        """Whether ``candidate``, behind in line, may join before ``blocked``, for which there is no memory yet."""
        ...

    def charge(self, sequence: Sequence, *, prompt: int = 0, cached: int = 0, output: int = 0) -> None:
        """Tell the order what service the sequence received, in tokens."""
        ...

    def standing(self, sequence: Sequence) -> float:
        """What its place in the order rests on: lower joins earlier. The ledger records it."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]: ...

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of all that wait."""
        ...

    def check_integrity(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A predicted duration in seconds: how likely values spread, not a point."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """What drives the time of a step. ``decode_rows`` counts the tokens of decode rows, drafts included;
    ``prefill_pairs`` counts (new token, earlier token) pairs of prefill chunks."""

    decode_rows: int = 0
    decode_context: int = 0
    prefill_tokens: int = 0
    prefill_pairs: int = 0


class StepTimePredictor(Protocol):
    def predict(self, load: StepLoad) -> TimeRange: ...
