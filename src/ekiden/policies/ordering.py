"""Who joins next: the orders of the waiting queue.

- `fcfs`: order of arrival.
- `priority`: lower numbers first, with ageing: waiting ``ageing_seconds`` outweighs one level. A request of level ``p``
  can be overtaken by one of level ``q < p`` only if that one arrived less than ``(p - q) * ageing_seconds`` after it.
- `deadline`: earliest deadline first; a request without one counts as due ``default_deadline_seconds`` after it came.
- `fair` is in `fairness.py`.

In the first three a request's place depends on itself alone, so they are one sorted queue with different keys.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from sortedcontainers import SortedDict

from ekiden.config import ORDERS
from ekiden.policies.fairness import FairQueue
from ekiden.state.controls import Controls
from ekiden.state.policy import ServiceCounters, WaitingQueue
from ekiden.state.sequence import Sequence

SortKey = Callable[[Sequence], float]
QueueMaker = Callable[[Controls, ServiceCounters], WaitingQueue]


class KeyedQueue:
    """Waiting sequences sorted by a key that never changes; equal keys keep the order in which they were pushed."""

    def __init__(self, key: SortKey, counters: ServiceCounters) -> None:
        self._key = key
        self._counters = counters
        self._sorted: SortedDict[tuple[float, int], Sequence] = SortedDict()
        self._place: dict[str, tuple[float, int]] = {}
        self._pushed = 0

    def push(self, sequence: Sequence) -> None:
        self._pushed += 1
        place = (self._key(sequence), self._pushed)
        self._place[sequence.request_id] = place
        self._sorted[place] = sequence

    def take_over(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self.push(sequence)

    def first(self, count: int) -> list[Sequence]:
        return list(islice(self._sorted.values(), count))

    def remove(self, sequence: Sequence) -> None:
        del self._sorted[self._place.pop(sequence.request_id)]

    def may_pass(self, candidate: Sequence, blocked: Sequence) -> bool:
        return True

    def charge(self, sequence: Sequence, *, prompt: int = 0, cached: int = 0, output: int = 0) -> None:
        """These orders do not depend on the service received."""

    def counters(self) -> ServiceCounters:
        """Those of the last time that `fair` was in force."""
        return self._counters

    def standing(self, sequence: Sequence) -> float:
        """The key it is sorted by."""
        return self._key(sequence)

    def num_ahead(self, sequence: Sequence) -> int:
        place = self._place.get(sequence.request_id, (self._key(sequence), self._pushed + 1))
        return int(self._sorted.bisect_left(place))

    def check_integrity(self) -> None:
        assert self._place == {s.request_id: place for place, s in self._sorted.items()}, "a place is lost or doubled"


def make_waiting_queue(controls: Controls, counters: ServiceCounters | None = None) -> WaitingQueue:
    """An empty queue in the order that is in force. ``counters`` are those of the queue before it."""
    return _QUEUES[controls.scheduling_policy](controls, counters or ServiceCounters())


def same_order(one: Controls, other: Controls) -> bool:
    """Whether both put the same waiting requests in the same order."""
    return _order(one) == _order(other)


def _order(controls: Controls) -> tuple[object, ...]:
    """The order's name and every control that decides a place in the queue."""
    weights = {name: limits.weight for name, limits in controls.tenants.items()}
    fair = (controls.fair_prompt_weight, controls.fair_cached_weight, controls.fair_output_weight, weights)
    return controls.scheduling_policy, controls.ageing_seconds, controls.default_deadline_seconds, fair


def _arrival(sequence: Sequence, controls: Controls) -> float:
    return sequence.request.arrival_time


def _aged(sequence: Sequence, controls: Controls) -> float:
    return sequence.request.priority * controls.ageing_seconds + sequence.request.arrival_time


def _due(sequence: Sequence, controls: Controls) -> float:
    request = sequence.request
    if request.deadline is not None:
        return request.deadline
    return request.arrival_time + controls.default_deadline_seconds


def _sorted_by(key: Callable[[Sequence, Controls], float]) -> QueueMaker:
    return lambda controls, counters: KeyedQueue(lambda sequence: key(sequence, controls), counters)


_QUEUES: dict[str, QueueMaker] = {
    "fcfs": _sorted_by(_arrival),
    "priority": _sorted_by(_aged),
    "deadline": _sorted_by(_due),
    "fair": FairQueue,
}
assert _QUEUES.keys() == set(ORDERS), "the orders of config/engine.py are not those that have a queue here"
