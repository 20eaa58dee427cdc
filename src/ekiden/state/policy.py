"""Ports of the scheduling policies: the order of the waiting queue, and the predicted time of a step."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ekiden.state.sequence import Sequence


@dataclass(frozen=True, slots=True)
class ServiceCounters:
    """The virtual token counters of `fair`, which are kept while another order is in force.

    A tenant that had no request waiting starts with ``floor``, unless its own counter is larger.
    """

    by_tenant: dict[str, float] = field(default_factory=dict)
    floor: float = 0.0


class WaitingQueue(Protocol):
    """Waiting sequences in the order in which they are to join. Only :class:`Population` pushes and removes, and it
    counts them."""

    def push(self, sequence: Sequence) -> None: ...

    def take_over(self, sequences: Iterable[Sequence]) -> None:
        """Fill an empty queue with sequences that waited in another, given in the order of their arrival."""
        ...

    def first(self, count: int) -> list[Sequence]:
        """The first ``count`` in order; they stay in the queue."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out of any place in the queue. Raises KeyError when it is not in it."""
        ...

    def may_pass(self, candidate: Sequence, blocked: Sequence) -> bool:
        """Whether ``candidate``, behind in line, may join before ``blocked``, for which there is no memory yet."""
        ...

    def charge(self, sequence: Sequence, *, prompt: int = 0, cached: int = 0, output: int = 0) -> None:
        """Count the service that a sequence received, in tokens."""
        ...

    def counters(self) -> ServiceCounters: ...

    def standing(self, sequence: Sequence) -> float:
        """The number that the queue orders the sequence by: lower joins earlier. The ledger records it."""
        ...

    def num_ahead(self, sequence: Sequence) -> int:
        """How many of those that wait would certainly join before the sequence if nobody came, whether it waits
        already or is about to. It costs no walk through the queue."""
        ...

    def check_integrity(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A predicted duration in seconds, as percentiles."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What drives the time of a step. ``decode_rows`` counts the tokens of decode rows, drafts included;
    ``prefill_pairs`` counts (new token, earlier token) pairs of prefill chunks."""

    decode_rows: int = 0
    decode_context: int = 0
    prefill_tokens: int = 0
    prefill_pairs: int = 0


class StepTimePredictor(Protocol):
    def predict(self, load: StepLoad) -> TimeRange: ...


class StepTimeForecaster(StepTimePredictor, Protocol):
    def least(self, load: StepLoad) -> float:
        """Seconds that such a step takes at least, nine times out of ten; 0 while too little is known to tell."""
        ...
