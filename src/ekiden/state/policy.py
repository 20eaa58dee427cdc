"""The two questions a scheduling policy answers, as ports. Everything else of the engine is shared by all policies.

*When* may waiting requests join (:class:`BatchingPolicy`), and *who* is next (:class:`WaitingQueue`).
"""

from collections.abc import Iterator
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


class WaitingQueue(Protocol):
    """Waiting sequences in the order in which they are to join."""

    def push(self, sequence: Sequence) -> None: ...

    def head(self, now: float) -> Sequence | None:
        """The next sequence to join; stays in the queue."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands. Raises KeyError when it is not here."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]: ...

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of all that wait."""
        ...

    @property
    def oldest_arrival(self) -> float | None: ...

    def check_integrity(self) -> None: ...
