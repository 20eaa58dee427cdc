"""Stage 2, formation: which rows the next step computes, within its token budget.

Rules:
- decodes first (one token each), then prefill chunks in order of admission with what is left of the budget;
- a chunk ends at a block border or at the end of the prompt, and never leaves a last chunk of a single token, which
  the backend would compute through its decode kernel with other rounding (docs/decisions);
- a decode that needs a block gets one here, so that nothing can fail after the plan is made. When the pool is empty a
  victim is preempted: the newest running sequence, never the oldest, and never one whose blocks are still on their way
  back from the swap space;
- while sequences decode, prefill chunks shrink until the predicted step (its 90th percentile) keeps the inter-token
  target; the first prompt in line still gets its smallest chunk, so that prefill never starves;
- at most ``max_concurrent_prefills`` prompts are part-way through at once;
- with ``prefill_first`` no decode is planned while prompts can be computed: for offline batches, whose streams nobody
  watches;
- a prompt block that is being computed in this step is not computed twice: another prompt with the same beginning waits
  for it and takes it over;
- output tokens are always computed one at a time, also when a sequence is computed again after its blocks were dropped.
"""

from dataclasses import dataclass, field, replace

from ekiden.kv_cache.kv_cache_manager import KVCacheManager
from ekiden.policies.padding import PaddingRows
from ekiden.state.controls import ControlsInForce
from ekiden.state.plan import BatchPlan, LeftOutReason
from ekiden.state.policy import StepLoad, StepTimePredictor
from ekiden.state.population import Population
from ekiden.state.sequence import Sequence, Status


def chunk_size(*, computed: int, prompt: int, budget: int, block_size: int) -> int:
    """Tokens of the next prefill chunk of a prompt of which ``computed`` tokens are done; 0 when none may start."""
    remaining = prompt - computed
    if remaining <= budget:
        return remaining
    end = (computed + budget) // block_size * block_size
    if prompt - end == 1:
        end -= block_size
    return max(0, end - computed)


class Formation:
    def __init__(
        self,
        *,
        population: Population,
        kv: KVCacheManager,
        controls: ControlsInForce,
        padding: PaddingRows,
        step_time: StepTimePredictor,
    ) -> None:
        self._population = population
        self._kv = kv
        self._controls = controls
        self._padding = padding
        self._step_time = step_time

    def form(
        self, *, swap_out: list[tuple[int, int]], swap_in: list[tuple[int, int]], resumed: list[Sequence]
    ) -> BatchPlan:
        """Plan the next step.

        ``swap_in`` and ``resumed`` are what refill brought back since the last one; ``swap_out`` belongs to sequences
        that were paused.
        """
        plan = BatchPlan(token_budget=self._controls.now.max_num_batched_tokens, swap_out=swap_out, swap_in=swap_in)
        if self._controls.now.prefill_first:
            self._add_prefills(plan)
            if not plan.empty:
                return plan
        self._add_decodes(plan, resumed)
        for sequence in self._padding:
            if plan.total_tokens < plan.token_budget:
                plan.add(sequence, 1)
        self._add_prefills(plan)
        return plan

    def _add_decodes(self, plan: BatchPlan, resumed: list[Sequence]) -> None:
        needs_block, sequences, num_tokens = self._kv.needs_block, plan.sequences, plan.num_tokens
        for sequence in list(self._population.running):
            if sequence.is_prefilling or sequence.status is not Status.RUNNING:
                continue
            if len(sequences) == plan.token_budget:  # it was lowered while more than that ran
                plan.left_out.append((sequence, LeftOutReason.TOKEN_BUDGET))
                continue
            if needs_block(sequence) and not self._grow(sequence, plan, resumed):
                continue
            sequences.append(sequence)
            num_tokens.append(1)
        plan.total_tokens = len(sequences)

    def _grow(self, sequence: Sequence, plan: BatchPlan, resumed: list[Sequence]) -> bool:
        """One more block for the sequence, taken from a victim if need be; False when it must sit this step out."""
        while self._kv.num_available == 0:
            if self._padding.give_up_blocks():
                continue
            victim, runner_up = self._victim(sequence, resumed)
            if victim is None:
                plan.left_out.append((sequence, LeftOutReason.KV_BLOCKS))
                return False
            self._preempt(victim, runner_up, plan)
            if victim is sequence:
                return False
        self._kv.grow(sequence)
        return True

    def _victim(self, needy: Sequence, resumed: list[Sequence]) -> tuple[Sequence | None, Sequence | None]:
        """The newest running sequence that is not behind ``needy`` in line; ``needy`` itself if it is the newest.

        With it comes the runner-up, who would have been chosen next.

        Rows are planned oldest first, so whoever stands after ``needy`` is not in the plan yet.
        """
        running = self._population.running
        candidates = iter(reversed(running[1:]))
        for candidate in candidates:
            if candidate is needy or (candidate not in resumed and candidate.block_table):
                if candidate in resumed:
                    break
                others = (other for other in candidates if other not in resumed and other.block_table)
                return candidate, next(others, None) if candidate is not needy else None
        return None, None

    def _preempt(self, victim: Sequence, runner_up: Sequence | None, plan: BatchPlan) -> None:
        self._population.running.remove(victim)
        self._population.preempted.append(victim)
        victim.move_to(Status.PREEMPTED)
        victim.num_preemptions += 1
        plan.swap_out += self._kv.swap_out(victim)
        plan.preempted.append(victim)
        plan.runners_up.append(runner_up)

    def _add_prefills(self, plan: BatchPlan) -> None:
        prefilling = [s for s in self._population.running if s.is_prefilling]
        if not prefilling:
            return
        room = _PrefillRoom(left=self._controls.now.max_num_batched_tokens - plan.total_tokens)
        decodes = StepLoad(
            decode_rows=len(plan.sequences),
            decode_context=sum(sequence.num_computed_tokens for sequence in plan.sequences),
            prefill_tokens=0,
            prefill_pairs=0,
        )
        for sequence in prefilling:
            reason = self._add_prefill(plan, sequence, room, decodes)
            if reason is not None:
                plan.left_out.append((sequence, reason))

    def _add_prefill(
        self, plan: BatchPlan, sequence: Sequence, room: "_PrefillRoom", decodes: StepLoad
    ) -> LeftOutReason | None:
        """The sequence's next chunk goes into the plan, or the reason why it does not is returned."""
        if room.prompts >= self._controls.now.max_concurrent_prefills:
            return LeftOutReason.CONCURRENT_PREFILLS
        gained = self._kv.take_over_computed(sequence)
        if gained:
            self._population.waiting.charge(sequence, prompt=-gained, cached=gained)
        if not room.being_computed.isdisjoint(self._kv.keys_to_compute(sequence, 1)):
            return LeftOutReason.PREFIX_IN_FLIGHT
        computed, prompt, size = sequence.num_computed_tokens, sequence.num_prompt_tokens, self._kv.block_size
        chunk = chunk_size(computed=computed, prompt=prompt, budget=room.left, block_size=size)
        reason = LeftOutReason.TOKEN_BUDGET
        while chunk and decodes.decode_rows and not self._keeps_target(room.load_with(decodes, computed, chunk)):
            smaller = chunk_size(computed=computed, prompt=prompt, budget=chunk - 1, block_size=size)
            if smaller == 0 and room.prompts == 0:
                break  # the smallest chunk there is: prefill must not starve
            chunk, reason = smaller, LeftOutReason.INTER_TOKEN_TARGET
        if chunk == 0:
            return reason
        plan.add(sequence, chunk)
        room.take(computed, chunk, self._kv.keys_to_compute(sequence, chunk))
        return None

    def _keeps_target(self, load: StepLoad) -> bool:
        target = self._controls.now.target_seconds
        return target is None or self._step_time.predict(load).p90 <= target


@dataclass(slots=True)
class _PrefillRoom:
    """What prefill chunks have taken of a step so far, and what is left."""

    left: int
    prompts: int = 0
    tokens: int = 0
    pairs: int = 0
    being_computed: set[bytes] = field(default_factory=set)

    def load_with(self, decodes: StepLoad, computed: int, chunk: int) -> StepLoad:
        return replace(
            decodes,
            prefill_tokens=self.tokens + chunk,
            prefill_pairs=self.pairs + chunk * (computed + chunk // 2),
        )

    def take(self, computed: int, chunk: int, keys: list[bytes]) -> None:
        self.left -= chunk
        self.prompts += 1
        self.tokens += chunk
        self.pairs += chunk * (computed + chunk // 2)
        self.being_computed.update(keys)
