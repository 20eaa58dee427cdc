"""Who joins next: the orders of the waiting queue.

- `fcfs`: order of arrival.
- `priority`: lower numbers first, with ageing: waiting ``ageing_seconds`` outweighs one level. A request of level ``p``
  can be overtaken by one of level ``q < p`` only if that one arrived less than ``(p - q) * ageing_seconds`` after it.
- `deadline`: earliest deadline first; a request without one counts as due ``default_deadline_seconds`` after it came.
- `fair` is in `fairness.py`.

In the first three a request's place depends on itself alone, so they are one sorted queue with different keys.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from sortedcontainers import SortedDict

from ekiden.policies.fairness import FairQueue
from ekiden.state.controls import Controls
from ekiden.state.policy import ServiceCounters, WaitingQueue
from ekiden.state.request import Request
from ekiden.state.sequence import Sequence

_KEYS: Final[Mapping[str, Callable[[Controls, Request], float]]] = {
    "fcfs": lambda controls, request: request.arrival_time,
    "priority": lambda controls, request: request.priority * controls.ageing_seconds + request.arrival_time,
    "deadline": lambda controls, request: (
        request.arrival_time + controls.default_deadline_seconds if request.deadline is None else request.deadline
    ),
}


class KeyedQueue:
    """Waiting sequences sorted by a key that never changes; equal keys keep the order in which they were pushed."""

    def __init__(self, key: Callable[[Sequence], float], counters: ServiceCounters) -> None:
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

    def check_integrity(self) -> None:
        assert self._place == {s.request_id: place for place, s in self._sorted.items()}, "a place is lost or doubled"


def make_waiting_queue(controls: Controls, counters: ServiceCounters | None = None) -> WaitingQueue:
    """An empty queue in the order that is in force. ``counters`` are those of the queue before it."""
    counters = counters or ServiceCounters()
    if controls.scheduling_policy == "fair":
        return FairQueue(controls, counters)
    key = _KEYS[controls.scheduling_policy]
    return KeyedQueue(lambda sequence: key(controls, sequence.request), counters)


def same_order(one: Controls, other: Controls) -> bool:
    """Whether both put the same waiting requests in the same order."""
    return _order(one) == _order(other)


def _order(controls: Controls) -> tuple[object, ...]:
    weights = {name: limits.weight for name, limits in controls.tenants.items()}
    fair = (controls.fair_prompt_weight, controls.fair_cached_weight, controls.fair_output_weight, weights)
    return controls.scheduling_policy, controls.ageing_seconds, controls.default_deadline_seconds, fair
