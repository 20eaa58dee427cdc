"""Stage 5, refill: freed capacity goes to whoever is next.

Preempted sequences come back first, and while any of them waits for memory nobody new joins. Then the batching policy
says how many may join and the waiting queue says who. Admission leaves a watermark of free blocks, so that those that
run already can grow without a preemption straight away; it does not apply when nothing runs.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from ekiden.kv_cache.kv_cache_manager import KVCacheManager
from ekiden.state.policy import BatchingPolicy, BatchView
from ekiden.state.population import Population
from ekiden.state.sequence import Sequence, Status


class WaitReason(StrEnum):
    """Why the queue's head did not join."""

    SLOTS = "slots"
    KV_BLOCKS = "kv_blocks"
    PREEMPTED_FIRST = "preempted_first"
    BATCHING = "batching"


@dataclass(slots=True)
class RefillOutcome:
    admitted: list[Sequence] = field(default_factory=list)
    resumed: list[Sequence] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    wait_reason: WaitReason | None = None


class Refill:
    def __init__(self, *, population: Population, kv: KVCacheManager, batching: BatchingPolicy) -> None:
        self._population = population
        self._kv = kv
        self._batching = batching
        self._base_watermark = kv.pool.num_blocks // 100
        self._next_admission = 0

    def admit(self, now: float) -> RefillOutcome:
        outcome = RefillOutcome()
        self._resume_preempted(outcome)
        if self._population.preempted:
            if len(self._population.waiting):
                outcome.wait_reason = WaitReason.PREEMPTED_FIRST
            return outcome
        self._admit_waiting(outcome, now)
        return outcome

    def next_change(self, now: float) -> float | None:
        """When a waiting request may join though nothing else happens."""
        return self._batching.next_change(self._view(now))

    def _view(self, now: float) -> BatchView:
        population = self._population
        return BatchView(
            now=now,
            in_batch=population.num_in_batch,
            waiting=len(population.waiting),
            oldest_arrival=population.waiting.oldest_arrival,
            max_num_seqs=population.max_num_seqs,
        )

    def _fits(self, sequence: Sequence) -> bool:
        running = len(self._population.running)
        watermark = self._base_watermark + running if running else 0
        return self._kv.blocks_to_admit(sequence) + watermark <= self._kv.num_available

    def _resume_preempted(self, outcome: RefillOutcome) -> None:
        preempted = self._population.preempted
        # Oldest admission first: the victims were taken newest first.
        preempted.sort(key=lambda sequence: sequence.admission)
        if preempted and not self._population.running:
            for padding in self._population.padding:
                self._kv.release(padding)
        while preempted and self._fits(preempted[0]):
            sequence = preempted.pop(0)
            outcome.swap_in += self._kv.admit(sequence)
            self._start(sequence)
            outcome.resumed.append(sequence)

    def _admit_waiting(self, outcome: RefillOutcome, now: float) -> None:
        population = self._population
        limit = self._batching.admission_limit(self._view(now))
        while (head := population.waiting.head(now)) is not None:
            if population.num_free_slots == 0:
                outcome.wait_reason = WaitReason.SLOTS
                return
            if len(outcome.admitted) >= limit:
                outcome.wait_reason = WaitReason.BATCHING
                return
            if not self._fits(head):
                outcome.wait_reason = WaitReason.KV_BLOCKS
                return
            population.waiting.remove(head)
            self._kv.admit(head)
            head.slot = population.take_slot()
            head.admission = self._next_admission = self._next_admission + 1
            head.admitted_time = now
            self._start(head)
            outcome.admitted.append(head)

    def _start(self, sequence: Sequence) -> None:
        sequence.move_to(Status.RUNNING)
        self._population.running.append(sequence)
