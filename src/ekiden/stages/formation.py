"""Stage 2, formation: it chooses the rows that the next step computes, within its token budget.

Rules:
- decodes first (one token each), then prefill chunks in order of admission with what is left of the budget, then the
  drafts of decode rows: a draft is a guess, so it takes only what no other sequence can use, and preempts none;
- where a chunk may end, and how few tokens it may have, is for the backend to say (:class:`ChunkRules`);
- a decode that needs a block gets one here, so that nothing can fail after the plan is made. When the pool is empty a
  victim is preempted: the newest running sequence, never the oldest, and never one whose blocks are still on their way
  back from the swap space;
- while sequences decode, prefill chunks shrink until the predicted step (its 90th percentile) keeps the inter-token
  target; the first prompt in line still gets its smallest chunk, so that prefill never starves;
- at most ``max_concurrent_prefills`` prompts are part-way through at once;
- with ``prefill_first`` no decode is planned while prompts can be computed. Offline batches use it, since nobody
  watches their streams;
- a prompt block that is being computed in this step is not computed twice: another prompt with the same beginning waits
  for it and takes it over;
- output tokens are computed one at a time when a sequence is computed again after its blocks were dropped, as they were
  the first time.
"""

from bisect import bisect_left
from dataclasses import dataclass, field, replace

from ekiden.kv_cache.kv_cache_manager import KVCacheManager
from ekiden.policies.padding import PaddingRows
from ekiden.policies.speculation import Speculation, load_with_draft
from ekiden.state.containment import contained
from ekiden.state.controls import ControlsInForce
from ekiden.state.plan import BatchPlan, BlockCopy, Row
from ekiden.state.policy import StepLoad, StepTimePredictor
from ekiden.state.population import Population
from ekiden.state.runner import ChunkRules
from ekiden.state.sequence import Sequence, Stage, Status
from ekiden.state.turn import FormationOutcome, LeftOutReason


def chunk_size(*, computed: int, prompt: int, budget: int, rules: ChunkRules) -> int:
    """Tokens of the next prefill chunk of a prompt of which ``computed`` tokens are done; 0 when none may start."""
    remaining = prompt - computed
    if remaining <= budget:
        return remaining
    end = (computed + budget) // rules.border * rules.border
    while prompt - end < rules.least:
        end -= rules.border
    return max(0, end - computed)


def smaller_chunks(chunk: int, *, computed: int, prompt: int, rules: ChunkRules) -> range:
    """The sizes below ``chunk`` that the prompt's next chunk may have, largest first."""
    largest = chunk_size(computed=computed, prompt=prompt, budget=chunk - 1, rules=rules)
    return range(largest, 0, -rules.border)


@dataclass(slots=True, kw_only=True, eq=False)
class Formation:
    population: Population
    kv: KVCacheManager
    controls: ControlsInForce
    padding: PaddingRows
    step_time: StepTimePredictor
    chunks: ChunkRules
    speculation: Speculation | None = None

    def form(self, *, swap_out: list[BlockCopy], swap_in: list[BlockCopy], resumed: list[Sequence]) -> FormationOutcome:
        """Plan the next step.

        ``swap_in`` and ``resumed`` are what refill brought back since the last one; ``swap_out`` belongs to sequences
        that were paused.
        """
        outcome = FormationOutcome(self.controls.now.max_num_batched_tokens, BatchPlan([], list(swap_out), swap_in))
        step = _Forming(outcome, outcome.plan.rows)
        if self.controls.now.prefill_first:
            self._add_prefills(step)
        if not step.rows:
            self._add_decodes(step, resumed)
            for sequence in self.padding:
                if step.total_tokens < outcome.token_budget:
                    step.add(sequence, sequence.row(1))
            # So far each row is of one token.
            outcome.load = StepLoad(decode_rows=len(step.rows), decode_context=sum([row.start for row in step.rows]))
            self._add_prefills(step)
            if self.speculation is not None:
                self._add_drafts(step, self.speculation)
        return outcome

    def _add_decodes(self, step: "_Forming", resumed: list[Sequence]) -> None:
        needs_block, sequences, rows = self.kv.needs_block, step.outcome.sequences, step.rows
        budget = step.outcome.token_budget
        for sequence in list(self.population.running):
            if sequence.is_prefilling or sequence.status is not Status.RUNNING:
                continue
            if len(rows) == budget:  # the budget was lowered while more sequences ran
                step.outcome.left_out.append((sequence, LeftOutReason.TOKEN_BUDGET))
                continue
            if needs_block(sequence) and not self._grow(sequence, step, resumed):
                continue
            row = sequence.plain_row() or self._own_row(sequence, step)
            if row is not None:
                sequences.append(sequence)
                rows.append(row)
        step.total_tokens = len(rows)

    def _own_row(self, sequence: Sequence, step: "_Forming") -> Row | None:
        """A row of the sequence's newest token; None when its grammar's matcher fails."""
        with contained(sequence, Stage.FORMATION, "asking its grammar which tokens may come"):
            return sequence.row(1, (), () if sequence.rules is None else sequence.rules.masks())
        step.outcome.failed.append(sequence)
        return None

    def _grow(self, sequence: Sequence, step: "_Forming", resumed: list[Sequence]) -> bool:
        """Give the sequence one more block, from a victim if need be; False when it must sit this step out."""
        while self.kv.pool.num_available == 0:
            if self.padding.give_up_blocks():
                continue
            victim, runner_up = self._victim(sequence, resumed)
            if victim is None:
                step.outcome.left_out.append((sequence, LeftOutReason.KV_BLOCKS))
                return False
            self._preempt(victim, runner_up, step)
            if victim is sequence:
                return False
        self.kv.grow(sequence)
        return True

    def _victim(self, needy: Sequence, resumed: list[Sequence]) -> tuple[Sequence | None, Sequence | None]:
        """The newest running sequence that can give up its blocks, and the runner-up: the one that would come next.

        It is ``needy`` itself when no newer one can. Rows are planned oldest first, so those newer than ``needy`` are
        not in the plan yet.
        """
        running = self.population.running
        candidates = iter(reversed(running[1:]))
        for candidate in candidates:
            if candidate is needy or (candidate not in resumed and candidate.block_table):
                if candidate in resumed:
                    break
                others = (other for other in candidates if other not in resumed and other.block_table)
                return candidate, next(others, None) if candidate is not needy else None
        return None, None

    def _preempt(self, victim: Sequence, runner_up: Sequence | None, step: "_Forming") -> None:
        self.population.running.remove(victim)
        self.population.preempted.append(victim)
        victim.move_to(Status.PREEMPTED)
        victim.num_preemptions += 1
        step.outcome.plan.swap_out.extend(self.kv.swap_out(victim))
        step.outcome.preempted.append(victim)
        step.outcome.kept_blocks.append(victim.swapped_blocks)
        step.outcome.runners_up.append(runner_up)

    def _add_prefills(self, step: "_Forming") -> None:
        for sequence in [s for s in self.population.running if s.is_prefilling and s.fault is None]:
            reason = self._add_prefill(step, sequence)
            if reason is not None:
                step.outcome.left_out.append((sequence, reason))

    def _add_prefill(self, step: "_Forming", sequence: Sequence) -> LeftOutReason | None:
        """Put the sequence's next chunk into the plan; the reason is returned when it gets none."""
        if step.prompts >= self.controls.now.max_concurrent_prefills:
            return LeftOutReason.CONCURRENT_PREFILLS
        gained = self.kv.take_over_computed(sequence)
        if gained:
            self.population.waiting.charge(sequence, prompt=-gained, cached=gained)
        if not step.being_computed.isdisjoint(self.kv.keys_to_compute(sequence, 1)):
            return LeftOutReason.PREFIX_IN_FLIGHT
        computed, prompt = sequence.num_computed_tokens, sequence.num_prompt_tokens
        left = step.outcome.token_budget - step.total_tokens
        planned = chunk_size(computed=computed, prompt=prompt, budget=left, rules=self.chunks)
        chunk = self._within_target(step, sequence, planned) if planned and step.outcome.load.decode_rows else planned
        reason = LeftOutReason.TOKEN_BUDGET if chunk == planned else LeftOutReason.INTER_TOKEN_TARGET
        if chunk == 0:
            return reason
        masks: tuple[bytes, ...] = ()
        if sequence.rules is not None and computed + chunk == len(sequence.token_ids):
            with contained(sequence, Stage.FORMATION, "asking its grammar which tokens may come"):
                masks = sequence.rules.masks()
            if sequence.fault is not None:
                step.outcome.failed.append(sequence)
                return None
        step.prompts += 1
        step.outcome.load = step.load_with(computed, chunk)
        step.being_computed.update(self.kv.keys_to_compute(sequence, chunk))
        step.add(sequence, sequence.row(chunk, (), masks))
        return None

    def _within_target(self, step: "_Forming", sequence: Sequence, planned: int) -> int:
        """The largest chunk, up to ``planned`` tokens, with which the step keeps the inter-token target.

        0 if there is none, but for the first prompt, which gets the smallest: prefill must not starve. No step takes
        less time for more tokens, so a bisection finds it.
        """
        computed, prompt = sequence.num_computed_tokens, sequence.num_prompt_tokens

        def keeps(chunk: int) -> bool:
            return self._keeps_target(step.load_with(computed, chunk))

        smaller = smaller_chunks(planned, computed=computed, prompt=prompt, rules=self.chunks)
        least = smaller[-1] if smaller else planned
        if step.prompts and not keeps(least):
            return 0
        if (step.prompts and least == planned) or keeps(planned):
            return planned
        place = bisect_left(smaller, True, key=keeps)
        return smaller[place] if place < len(smaller) else least

    def _keeps_target(self, load: StepLoad) -> bool:
        target = self.controls.now.target_seconds
        return target is None or self.step_time.predict(load).p90 <= target

    def _add_drafts(self, step: "_Forming", speculation: Speculation) -> None:
        """Lengthen decode rows by guesses of what comes next."""
        for index, drafts, masks in speculation.choose(step.outcome, step.total_tokens):
            row = step.rows[index]
            for position in range(row.end, row.end + len(drafts)):
                step.outcome.load = load_with_draft(step.outcome.load, position)
            step.rows[index] = step.outcome.sequences[index].row(1, drafts, masks)
            step.total_tokens += len(drafts)


@dataclass(slots=True)
class _Forming:
    """A plan in the making. ``rows`` are the plan's own; ``prompts`` counts its prefill chunks."""

    outcome: FormationOutcome
    rows: list[Row]
    total_tokens: int = 0
    prompts: int = 0
    being_computed: set[bytes] = field(default_factory=set)
    """The prefix keys of the prompt blocks that the chunks complete."""

    def add(self, sequence: Sequence, row: Row) -> None:
        self.outcome.sequences.append(sequence)
        self.rows.append(row)
        self.total_tokens += len(row.token_ids)

    def load_with(self, computed: int, chunk: int) -> StepLoad:
        """The load with one more chunk."""
        load, pairs = self.outcome.load, chunk * (computed + chunk // 2)
        return replace(load, prefill_tokens=load.prefill_tokens + chunk, prefill_pairs=load.prefill_pairs + pairs)
