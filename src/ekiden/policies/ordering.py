"""Who joins next: the orders of the waiting queue."""

from collections import OrderedDict
from collections.abc import Iterator

from ekiden.state.policy import WaitingQueue
from ekiden.state.sequence import Sequence


class FirstComeFirstServed:
    """Arrival order. An ordered dict finds its first and removes from anywhere in constant time."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, Sequence] = OrderedDict()
        self._num_tokens = 0

    def push(self, sequence: Sequence) -> None:
        self._waiting[sequence.request_id] = sequence
        self._num_tokens += sequence.num_prompt_tokens

    def head(self, now: float) -> Sequence | None:
        return next(iter(self._waiting.values()), None)

    def remove(self, sequence: Sequence) -> None:
        del self._waiting[sequence.request_id]
        self._num_tokens -= sequence.num_prompt_tokens

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting.values())

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def oldest_arrival(self) -> float | None:
        head = next(iter(self._waiting.values()), None)
        return None if head is None else head.request.arrival_time

    def check_integrity(self) -> None:
        assert self._num_tokens == sum(s.num_prompt_tokens for s in self), "waiting tokens miscounted"


def make_waiting_queue(name: str) -> WaitingQueue:
    """The order called ``name`` in the configuration."""
    orders = {"fcfs": FirstComeFirstServed}
    return orders[name]()
