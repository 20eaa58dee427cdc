"""Where every live sequence is. A sequence is in exactly one container, and the container agrees with its status.

| container   | status    | filled by          | emptied by                      |
| ----------- | --------- | ------------------ | ------------------------------- |
| `waiting`   | WAITING   | intake             | refill, retirement              |
| `running`   | RUNNING   | refill             | formation (victims), retirement |
| `preempted` | PREEMPTED | formation, intake  | refill, retirement              |
| `paused`    | PAUSED    | retirement         | intake (resume), retirement     |
| `padding`   | FINISHED  | retirement         | retirement (batch ends), refill |

`running` is in order of admission, oldest first. A sequence keeps its slot while it runs, is preempted or pads.
A paused one gives its slot up; resumed, it waits again, or is preempted without a slot until refill finds one.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass

from ekiden.state.invariants import Invariant, checking
from ekiden.state.policy import WaitingQueue
from ekiden.state.sequence import Sequence, Status


@dataclass(slots=True)
class TenantQueue:
    """One tenant's part of the waiting queue."""

    requests: int = 0
    tokens: int = 0


class Population:
    def __init__(self, waiting: WaitingQueue, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.waiting = waiting
        self.running: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.paused: dict[str, Sequence] = {}
        self.padding: list[Sequence] = []
        self.by_id: dict[str, Sequence] = {}
        """Every sequence that has not had its terminal event."""
        self._free_slots = list(range(max_num_seqs))
        self._arrivals: OrderedDict[str, float] = OrderedDict()
        self._by_tenant: dict[str, TenantQueue] = {}
        self._deadlines: list[tuple[float, str]] = []

    @property
    def num_in_batch(self) -> int:
        """Sequences that hold a slot."""
        return self.max_num_seqs - len(self._free_slots)

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def oldest_arrival(self) -> float | None:
        """When the one that has waited longest came."""
        return next(iter(self._arrivals.values()), None)

    def waiting_of(self, tenant: str) -> TenantQueue:
        """How much of the queue is this tenant's."""
        return self._by_tenant.get(tenant, TenantQueue())

    def enqueue(self, sequence: Sequence) -> None:
        self.waiting.push(sequence)
        self._arrivals[sequence.request_id] = sequence.request.arrival_time
        share = self._by_tenant.setdefault(sequence.request.tenant, TenantQueue())
        share.requests += 1
        share.tokens += sequence.num_prompt_tokens

    def dequeue(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        del self._arrivals[sequence.request_id]
        share = self._by_tenant[sequence.request.tenant]
        share.requests -= 1
        share.tokens -= sequence.num_prompt_tokens
        if share.requests == 0:
            del self._by_tenant[sequence.request.tenant]

    def take_slot(self) -> int:
        """The lowest free slot."""
        return heapq.heappop(self._free_slots)

    def free_slot(self, sequence: Sequence) -> None:
        heapq.heappush(self._free_slots, sequence.slot)
        sequence.slot = -1

    def watch_deadline(self, sequence: Sequence) -> None:
        if sequence.request.deadline is not None:
            heapq.heappush(self._deadlines, (sequence.request.deadline, sequence.request_id))

    def expired(self, now: float) -> list[Sequence]:
        """Live sequences whose deadline has passed, each reported once."""
        found = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id = heapq.heappop(self._deadlines)
            if request_id in self.by_id:
                found.append(self.by_id[request_id])
        return found

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline on the list; it may belong to a request that has ended already."""
        return self._deadlines[0][0] if self._deadlines else None

    @checking(Invariant.PLACES)
    def check_integrity(self) -> None:
        """Assert that every sequence is in one place, and that slots are held by exactly those who may hold one."""
        self.waiting.check_integrity()
        placed = [
            *((s, Status.WAITING) for s in self.waiting),
            *((s, Status.RUNNING) for s in self.running),
            *((s, Status.PREEMPTED) for s in self.preempted),
            *((s, Status.PAUSED) for s in self.paused.values()),
        ]
        for sequence, status in placed:
            assert sequence.status is status, f"{sequence!r} lies among the {status} ones"
            assert self.by_id.get(sequence.request_id) is sequence, f"{sequence!r} is not registered"
        assert len(placed) == len(self.by_id), "a live sequence is in no container or in two"
        assert len({s.request_id for s, _ in placed}) == len(placed), "a sequence is in two places"
        holders = [*self.running, *(s for s in self.preempted if s.slot >= 0), *self.padding]
        slots = sorted([*self._free_slots, *(s.slot for s in holders)])
        assert slots == list(range(self.max_num_seqs)), f"slots are lost or doubled: {slots}"
        assert all(s.slot == -1 for s in [*self.waiting, *self.paused.values()]), "a waiting or paused one holds a slot"
        assert sum(share.requests for share in self._by_tenant.values()) == len(self.waiting), "a tenant's queue is off"
        assert self._arrivals.keys() == {s.request_id for s in self.waiting}, "an arrival is lost"
        assert all(s.status is Status.FINISHED and s.padding for s in self.padding)
