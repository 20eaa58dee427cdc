"""Stage 5, refill: it gives freed capacity to the next requests in order.

A request that waits for KV blocks at the head of the queue may be passed by later ones that fit, a bounded number of
times; then no request passes it until it fits. So a small request is not held up by a large one for long, and a large
one is not starved by small ones.

Preempted sequences come back first, and no new request joins while one of them waits for memory. Then the batching
policy says how many may join and the waiting queue says which. Admission leaves a watermark of free blocks, so that the
running sequences can grow without a preemption right away; it does not apply when nothing runs.
"""

from bisect import insort
from dataclasses import dataclass

from ekiden.guardrails.signals import Signals
from ekiden.kv_cache.kv_cache_manager import KVCacheManager
from ekiden.policies.batching import admission_limit
from ekiden.policies.padding import PaddingRows
from ekiden.state.controls import ControlsInForce
from ekiden.state.population import Population
from ekiden.state.sequence import Sequence, Status
from ekiden.state.turn import Place, RefillOutcome, WaitReason

_LOOKAHEAD = 8
"""How many waiting requests behind a blocked one are looked at in one refill."""


@dataclass(slots=True, kw_only=True, eq=False)
class Refill:
    population: Population
    kv: KVCacheManager
    controls: ControlsInForce
    padding: PaddingRows
    signals: Signals
    num_admitted: int = 0

    def admit(self, now: float, *, waited: bool = True) -> RefillOutcome:
        """``waited``: whether anybody of the queue has waited since the last call, and not come just now."""
        outcome = RefillOutcome()
        backlogged = waited and len(self.population.queued) > 0
        self._resume_preempted(outcome)
        if not self.population.preempted:
            self._admit_waiting(outcome, now)
        elif self.population.queued:
            outcome.wait_reason = WaitReason.PREEMPTED_FIRST
        self.signals.drain_rate.observe(joined=len(outcome.admitted), backlogged=backlogged, now=now)
        self.signals.service_rate.observe(joined=len(outcome.admitted), held=bool(self.population.queued), now=now)
        return outcome

    def _fits(self, sequence: Sequence) -> bool:
        running = len(self.population.running)
        watermark = self.kv.pool.num_blocks // 100 + running if running else 0
        return self.kv.blocks_to_admit(sequence) + watermark <= self.kv.pool.num_available

    def _resume_preempted(self, outcome: RefillOutcome) -> None:
        preempted = self.population.preempted
        # The oldest admission comes back first, since the newest was preempted first.
        preempted.sort(key=lambda sequence: sequence.admission)
        if preempted and not self.population.running:
            self.padding.end()
            if self.population.num_free_slots == 0:
                # There are fewer slots than before; only those that kept one can go on.
                preempted.sort(key=lambda sequence: sequence.slot is None)
        while preempted and self._fits(preempted[0]):
            sequence = preempted[0]
            if sequence.slot is None:  # it was paused meanwhile
                if self.population.num_free_slots == 0:
                    return
                sequence.slot = self.population.take_slot()
            preempted.pop(0)
            outcome.swap_in += self.kv.admit(sequence)
            self._start(sequence)
            outcome.resumed.append(sequence)

    def _admit_waiting(self, outcome: RefillOutcome, now: float) -> None:
        limit = admission_limit(self.controls.now, self.population, now)
        while head := self.population.waiting.first(1):
            if not self._may_join(outcome, limit):
                outcome.head = head[0]
                return
            if not self._fits(head[0]):
                self._look_past_the_blocked(outcome, limit, now)
                return
            self._admit(head[0], outcome, now)

    def _look_past_the_blocked(self, outcome: RefillOutcome, limit: int, now: float) -> None:
        """Let a few requests join that wait behind one that does not fit; each counts as an overtaking."""
        blocked: list[Sequence] = []
        waiting = self.population.waiting
        for candidate in waiting.first(_LOOKAHEAD + 1):
            if blocked and not waiting.may_pass(candidate, blocked[0]):
                continue
            if self._fits(candidate):
                for passed in blocked:
                    passed.num_overtaken += 1
                self._admit(candidate, outcome, now)
            else:
                blocked.append(candidate)
            patient = all(sequence.num_overtaken < self.controls.now.max_overtakes for sequence in blocked)
            if not patient or not self._may_join(outcome, limit):
                break
        outcome.wait_reason = outcome.wait_reason or WaitReason.KV_BLOCKS
        outcome.head, outcome.passed_over = blocked[0], blocked

    def _may_join(self, outcome: RefillOutcome, limit: int) -> bool:
        """Whether a slot is free and the batching policy allows one more; sets ``wait_reason`` when not."""
        if self.population.num_free_slots == 0:
            outcome.wait_reason = WaitReason.SLOTS
        elif len(outcome.admitted) >= limit:
            outcome.wait_reason = WaitReason.BATCHING
        return outcome.wait_reason is None

    def _admit(self, sequence: Sequence, outcome: RefillOutcome, now: float) -> None:
        population = self.population
        standing = population.waiting.standing(sequence)
        population.dequeue(sequence)
        self.kv.admit(sequence)
        cached = sequence.num_cached_tokens
        population.waiting.charge(sequence, prompt=sequence.num_prompt_tokens - cached, cached=cached)
        slot = sequence.slot = population.take_slot()
        sequence.admission = self.num_admitted = self.num_admitted + 1
        sequence.admitted_time = now
        self._start(sequence)
        outcome.admitted.append(sequence)
        outcome.places.append(Place(slot, len(sequence.block_table), standing))

    def _start(self, sequence: Sequence) -> None:
        sequence.move_to(Status.RUNNING)
        insort(self.population.running, sequence, key=lambda other: other.admission)
