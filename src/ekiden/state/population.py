"""Where every live sequence is. A sequence is in exactly one container, and the container agrees with its status.

| container   | status    | filled by          | emptied by                      |
| ----------- | --------- | ------------------ | ------------------------------- |
| `waiting`   | WAITING   | intake             | refill, retirement              |
| `running`   | RUNNING   | refill             | formation (victims), retirement |
| `preempted` | PREEMPTED | formation, intake  | refill, retirement              |
| `paused`    | PAUSED    | retirement         | intake (resume), retirement     |
| `padding`   | FINISHED  | retirement         | retirement (batch ends), refill |

`running` is in order of admission, oldest first. A sequence keeps its slot while it runs, while it is preempted, and
as padding. A paused one gives its slot up. When it is resumed it waits again, or counts as preempted and gets a slot
from refill.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass

from ekiden.state.invariants import Invariant, checking
from ekiden.state.policy import WaitingQueue
from ekiden.state.sequence import Sequence, Status


@dataclass(slots=True)
class QueueSize:
    """How many requests wait, and with how many prompt tokens."""

    requests: int = 0
    tokens: int = 0


class Population:
    def __init__(self, waiting: WaitingQueue, max_num_seqs: int) -> None:
        self.max_num_seqs = 0
        """How many slots may be in use."""
        self.waiting = waiting
        self.running: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.paused: dict[str, Sequence] = {}
        self.padding: list[Sequence] = []
        self.by_id: dict[str, Sequence] = {}
        """Every sequence that has not had its terminal event."""
        self._num_slots = 0
        self._free_slots: list[int] = []
        """A heap of the free slots among all ``_num_slots`` that have been numbered so far."""
        self.queued: OrderedDict[str, Sequence] = OrderedDict()
        """What is in ``waiting``, in the order in which it came."""
        self.queue_size = QueueSize()
        self._queue_sizes: dict[str, QueueSize] = {}
        self._deadlines: list[tuple[float, str]] = []
        self.resize(max_num_seqs)

    @property
    def num_in_batch(self) -> int:
        """Sequences that hold a slot."""
        return self._num_slots - len(self._free_slots)

    @property
    def num_free_slots(self) -> int:
        return max(0, self.max_num_seqs - self.num_in_batch)

    @property
    def oldest_arrival(self) -> float | None:
        """When the sequence that has waited longest arrived."""
        return next((sequence.request.arrival_time for sequence in self.queued.values()), None)

    def queue_size_of(self, tenant: str) -> QueueSize:
        """The tenant's part of the waiting queue."""
        return self._queue_sizes.get(tenant, QueueSize())

    def enqueue(self, sequence: Sequence) -> None:
        self.waiting.push(sequence)
        self.queued[sequence.request_id] = sequence
        self._count(sequence, 1)

    def dequeue(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        del self.queued[sequence.request_id]
        self._count(sequence, -1)

    def _count(self, sequence: Sequence, change: int) -> None:
        tenant = sequence.request.tenant
        of_tenant = self._queue_sizes.setdefault(tenant, QueueSize())
        for size in (self.queue_size, of_tenant):
            size.requests += change
            size.tokens += change * sequence.num_prompt_tokens
        if of_tenant.requests == 0:
            del self._queue_sizes[tenant]

    def remove(self, sequence: Sequence) -> None:
        """Take a live sequence out of the container that its status names."""
        match sequence.status:
            case Status.WAITING:
                self.dequeue(sequence)
            case Status.RUNNING:
                self.running.remove(sequence)
            case Status.PAUSED:
                del self.paused[sequence.request_id]
            case _:
                self.preempted.remove(sequence)

    def take_slot(self) -> int:
        """The lowest free slot. There must be one."""
        return heapq.heappop(self._free_slots)

    def free_slot(self, sequence: Sequence) -> None:
        """Free the sequence's slot, if it has one."""
        if sequence.slot is not None:
            heapq.heappush(self._free_slots, sequence.slot)
            sequence.slot = None

    def resize(self, max_num_seqs: int) -> None:
        """Change the number of slots. A sequence keeps the slot it has, so more may be in use for a while."""
        self.max_num_seqs = max_num_seqs
        for slot in range(self._num_slots, max_num_seqs):
            heapq.heappush(self._free_slots, slot)
        self._num_slots = max(self._num_slots, max_num_seqs)

    def reorder(self, queue: WaitingQueue) -> None:
        """Move the waiting sequences to another, empty queue."""
        queue.take_over(list(self.queued.values()))
        self.waiting = queue

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
        """The earliest deadline that is watched; its request may have ended already."""
        return self._deadlines[0][0] if self._deadlines else None

    @checking(Invariant.PLACES)
    def check_integrity(self) -> None:
        """Assert that every sequence is in one place, and that each slot is free or held by one that may hold it."""
        self.waiting.check_integrity()
        waiting = self.queued.values()
        placed = [
            *((s, Status.WAITING) for s in waiting),
            *((s, Status.RUNNING) for s in self.running),
            *((s, Status.PREEMPTED) for s in self.preempted),
            *((s, Status.PAUSED) for s in self.paused.values()),
        ]
        for sequence, status in placed:
            assert sequence.status is status, f"{sequence!r} lies among the {status} ones"
            assert self.by_id.get(sequence.request_id) is sequence, f"{sequence!r} is not registered"
        assert len(placed) == len(self.by_id), "a live sequence is in no container or in two"
        assert len({s.request_id for s, _ in placed}) == len(placed), "a sequence is in two places"
        slots = [s.slot for s in (*self.running, *self.preempted, *self.padding) if s.slot is not None]
        assert all(s.slot is not None for s in (*self.running, *self.padding)), "one that is computed has no slot"
        slots += self._free_slots
        assert sorted(slots) == list(range(self._num_slots)), f"slots are lost or doubled: {sorted(slots)}"
        assert all(s.slot is None for s in (*waiting, *self.paused.values())), "a waiting or paused one has a slot"
        ordered = self.waiting.first(len(waiting) + 1)
        assert sorted(s.request_id for s in ordered) == sorted(self.queued), "the queue's order lost or doubled one"
        sizes = list(self._queue_sizes.values())
        assert self.queue_size.requests == sum(size.requests for size in sizes) == len(waiting), "requests miscounted"
        tokens = sum(s.num_prompt_tokens for s in waiting)
        assert self.queue_size.tokens == sum(size.tokens for size in sizes) == tokens, "waiting tokens miscounted"
        assert all(s.status is Status.FINISHED and s.padding for s in self.padding)
