"""Where every live sequence is. A sequence is in exactly one container, and the container agrees with its status.

| container   | status    | filled by          | emptied by                      |
| ----------- | --------- | ------------------ | ------------------------------- |
| `waiting`   | WAITING   | intake             | refill, retirement              |
| `running`   | RUNNING   | refill             | formation (victims), retirement |
| `preempted` | PREEMPTED | formation          | refill, retirement              |
| `padding`   | FINISHED  | retirement         | retirement (end of its batch)   |

`running` is in order of admission, oldest first. A sequence keeps its slot while it runs, is preempted or pads.
"""

import heapq

from ekiden.state.policy import WaitingQueue
from ekiden.state.sequence import Sequence, Status


class Population:
    def __init__(self, waiting: WaitingQueue, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.waiting = waiting
        self.running: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.padding: list[Sequence] = []
        self.by_id: dict[str, Sequence] = {}
        """Every sequence that has not had its terminal event."""
        self._free_slots = list(range(max_num_seqs))
        self._deadlines: list[tuple[float, str]] = []

    @property
    def num_in_batch(self) -> int:
        """Sequences that hold a slot."""
        return self.max_num_seqs - len(self._free_slots)

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

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

    def check_integrity(self) -> None:
        """Assert invariant 2, and that slots are held by exactly those who may hold one."""
        self.waiting.check_integrity()
        placed = [
            *((s, Status.WAITING) for s in self.waiting),
            *((s, Status.RUNNING) for s in self.running),
            *((s, Status.PREEMPTED) for s in self.preempted),
        ]
        for sequence, status in placed:
            assert sequence.status is status, f"{sequence!r} lies among the {status} ones"
            assert self.by_id.get(sequence.request_id) is sequence, f"{sequence!r} is not registered"
        assert len(placed) == len(self.by_id), "a live sequence is in no container or in two"
        assert len({s.request_id for s, _ in placed}) == len(placed), "a sequence is in two places"
        holders = [*self.running, *self.preempted, *self.padding]
        slots = sorted([*self._free_slots, *(s.slot for s in holders)])
        assert slots == list(range(self.max_num_seqs)), f"slots are lost or doubled: {slots}"
        assert all(s.slot == -1 for s in self.waiting), "a waiting sequence holds a slot"
        assert all(s.status is Status.FINISHED and s.padding for s in self.padding)
