"""Faults seeded into the scheduler on purpose: the simulation must catch every one, and by the invariant it breaks.

Each entry breaks one rule of one owner. A simulation that does not notice it is too weak, and one that only crashes has
noticed nothing: what counts is a breach of the invariant that the entry names.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ekiden.engine.inbox import Inbox
from ekiden.kv_cache.kv_cache_manager import KVCacheManager
from ekiden.policies.speculation import Speculation
from ekiden.stages import formation, retirement
from ekiden.stages.advance import Advance
from ekiden.stages.formation import Formation
from ekiden.stages.refill import Refill
from ekiden.stages.retirement import Retirement
from ekiden.state.controls import Controls
from ekiden.state.invariants import Invariant, InvariantBreach
from ekiden.state.plan import Row, RowResult, StateSum, StepOutput
from ekiden.state.population import Population
from ekiden.state.request import Pooling, Request, RequestUpdate
from ekiden.state.runner import ChunkRules
from ekiden.state.sequence import Sequence
from ekiden.state.turn import Turn
from tests.simulation.simulator import shrink, simulate
from tests.simulation.trouble import PLANTED

SEEDS = 1200
Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch], None]
MUTATIONS: dict[str, tuple[Invariant, Mutation]] = {}


def breaks(invariant: Invariant) -> Callable[[Mutation], Mutation]:
    def enter(function: Mutation) -> Mutation:
        MUTATIONS[function.__name__] = invariant, function
        return function

    return enter


@breaks(Invariant.BUDGET)
def admission_ignores_the_pool(patch: Patch) -> None:
    patch.setattr(Refill, "_fits", lambda self, sequence: True)


@breaks(Invariant.BUDGET)
def the_oldest_is_the_victim(patch: Patch) -> None:
    def oldest(self: Formation, needy: Sequence, resumed: list[Sequence]) -> tuple[Sequence | None, Sequence | None]:
        running = self.population.running
        return next((s for s in running if s is not needy and s not in resumed and s.block_table), needy), None

    patch.setattr(Formation, "_victim", oldest)


@breaks(Invariant.BLOCKS)
def blocks_of_aborted_requests_are_kept(patch: Patch) -> None:
    give_back = Retirement._give_back

    def forget(self: Retirement, sequence: Sequence) -> None:
        if sequence.finish_reason == "abort":
            self.kv._tables.pop(sequence.request_id, None)
            self.population.free_slot(sequence)
        else:
            give_back(self, sequence)

    patch.setattr(Retirement, "_give_back", forget)


@breaks(Invariant.SAME_TOKENS)
def swapped_content_does_not_come_back(patch: Patch) -> None:
    swap_in = KVCacheManager._swap_in

    def lose(self: KVCacheManager, sequence: Sequence) -> list[tuple[int, int]]:
        swap_in(self, sequence)
        return []

    patch.setattr(KVCacheManager, "_swap_in", lose)


@breaks(Invariant.SAME_TOKENS)
def swap_blocks_are_reused_while_they_are_read(patch: Patch) -> None:
    swap_in = KVCacheManager._swap_in

    def hasty(self: KVCacheManager, sequence: Sequence) -> list[tuple[int, int]]:
        pairs = swap_in(self, sequence)
        self.plan_executed()
        return pairs

    patch.setattr(KVCacheManager, "_swap_in", hasty)


@breaks(Invariant.SAME_TOKENS)
def prompts_are_shared_before_they_are_computed(patch: Patch) -> None:
    admit = KVCacheManager.admit

    def early(self: KVCacheManager, sequence: Sequence) -> list[tuple[int, int]]:
        pairs = admit(self, sequence)
        self.note_computed(sequence, 0, sequence.num_prompt_tokens)
        return pairs

    patch.setattr(KVCacheManager, "admit", early)


@breaks(Invariant.PROGRESS)
def a_whole_prompt_may_come_from_the_cache(patch: Patch) -> None:
    patch.setattr("ekiden.kv_cache.kv_cache_manager.reusable_blocks", lambda prompt, size, least: prompt // size)


@breaks(Invariant.SAME_TOKENS)
def what_was_dropped_stays_in_the_sums(patch: Patch) -> None:
    def kept(self: Sequence, pooling: Pooling, end: int) -> StateSum:
        return StateSum(self.num_computed_tokens, self.state_sum)

    patch.setattr(Sequence, "_state_sum", kept)


@breaks(Invariant.SAME_TOKENS)
def means_are_taken_of_what_was_not_computed(patch: Patch) -> None:
    patch.setattr(Request, "first_needed", property(lambda self: len(self.prompt_token_ids)))


@breaks(Invariant.SAME_TOKENS)
def chunks_ignore_block_borders(patch: Patch) -> None:
    def greedy(*, computed: int, prompt: int, budget: int, rules: ChunkRules) -> int:
        return min(prompt - computed, budget)

    patch.setattr(formation, "chunk_size", greedy)


@breaks(Invariant.BUDGET)
def prefill_ignores_what_decodes_took_of_the_budget(patch: Patch) -> None:
    add_prefills = Formation._add_prefills

    def generous(self: Formation, step: formation._Forming) -> None:
        taken, step.total_tokens = step.total_tokens, 0
        add_prefills(self, step)
        step.total_tokens += taken

    patch.setattr(Formation, "_add_prefills", generous)


@breaks(Invariant.WORK_CONSERVATION)
def continuous_batching_does_not_refill(patch: Patch) -> None:
    def lazy(controls: Controls, population: Population, now: float) -> int:
        return population.max_num_seqs if population.num_in_batch == 0 else 0

    patch.setattr("ekiden.stages.refill.admission_limit", lazy)


@breaks(Invariant.RIGHT_END)
def one_token_too_many(patch: Patch) -> None:
    end = Retirement._end

    def late(self: Retirement, sequence: Sequence, token: int) -> Any:
        sequence.max_total_tokens += 1
        ended = end(self, sequence, token)
        sequence.max_total_tokens -= 1
        return ended

    patch.setattr(retirement.Retirement, "_end", late)


@breaks(Invariant.PROGRESS)
def nobody_counts_who_is_overtaken(patch: Patch) -> None:
    look_past = Refill._look_past_the_blocked

    def impatient(self: Refill, *arguments: Any) -> None:
        controls = self.controls.now
        self.controls.now = msgspec.structs.replace(controls, max_overtakes=10**9)
        look_past(self, *arguments)
        self.controls.now = controls

    patch.setattr(Refill, "_look_past_the_blocked", impatient)


@breaks(Invariant.PROGRESS)
def deadlines_are_forgotten(patch: Patch) -> None:
    patch.setattr(Population, "expired", lambda self, now: [])


@breaks(Invariant.ONE_END)
def an_abort_is_told_twice(patch: Patch) -> None:
    apply = Inbox.apply

    def twice(self: Inbox, turn: Turn, resumed: list[Sequence]) -> list[RequestUpdate]:
        updates = apply(self, turn, resumed)
        return updates + [update for update in updates if update.finish is not None]

    patch.setattr(Inbox, "apply", twice)


@breaks(Invariant.PLACES)
def whoever_is_paused_keeps_its_slot(patch: Patch) -> None:
    free_slot = Population.free_slot

    def keep(self: Population, sequence: Sequence) -> None:
        if not sequence.paused_by:
            free_slot(self, sequence)

    patch.setattr(Population, "free_slot", keep)


@breaks(Invariant.GIVEN_BACK)
def blocks_outlive_their_deadline(patch: Patch) -> None:
    release = KVCacheManager.release

    def keep(self: KVCacheManager, sequence: Sequence) -> None:
        if sequence.finish_reason != "deadline":
            release(self, sequence)

    patch.setattr(KVCacheManager, "release", keep)


@breaks(Invariant.GIVEN_BACK)
def rejected_drafts_keep_their_blocks(patch: Patch) -> None:
    patch.setattr(KVCacheManager, "trim", lambda self, sequence, num_tokens: None)


@breaks(Invariant.BUDGET)
def drafts_ignore_what_others_took_of_the_budget(patch: Patch) -> None:
    add_drafts = Formation._add_drafts

    def generous(self: Formation, step: formation._Forming, speculation: Speculation) -> None:
        taken, step.total_tokens = step.total_tokens, 0
        add_drafts(self, step, speculation)
        step.total_tokens += taken

    patch.setattr(Formation, "_add_drafts", generous)


@breaks(Invariant.CONTAINED)
def a_row_that_fails_ends_its_whole_step(patch: Patch) -> None:
    def give_up(self: Advance, rows: list[Row]) -> StepOutput:
        return StepOutput(rows=[RowResult(error=PLANTED)] * len(rows), attempts=2)

    patch.setattr(Advance, "_try_again", give_up)


@breaks(Invariant.CONTAINED)
def a_row_that_failed_gives_a_token(patch: Patch) -> None:
    apply = Retirement.apply

    def trusting(self: Retirement, formed: Any, output: StepOutput, now: float) -> Any:
        rows = [RowResult((1,)) if result.error else result for result in output.rows]
        return apply(self, formed, msgspec.structs.replace(output, rows=rows), now)

    patch.setattr(Retirement, "apply", trusting)


def breach_of(seed: int) -> Invariant | None:
    """The invariant that the world of ``seed`` breaks; a crash is no breach."""
    try:
        simulate(seed)
    except InvariantBreach as breach:
        return breach.invariant
    except Exception:  # noqa: BLE001 - a mutated engine may crash in any way, and none of them counts
        return None
    return None


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_simulation_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    invariant, mutate = MUTATIONS[name]
    mutate(monkeypatch)
    caught = any(breach_of(seed) is invariant for seed in range(SEEDS))
    assert caught, f"{name} breaks {invariant.name}, which went unnoticed in {SEEDS} worlds"


def test_every_invariant_is_one_that_the_simulation_can_catch() -> None:
    assert {invariant for invariant, _ in MUTATIONS.values()} == set(Invariant)


def test_a_world_that_fails_is_cut_to_the_fewest_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    invariant, mutate = MUTATIONS["continuous_batching_does_not_refill"]
    mutate(monkeypatch)
    seed = next(seed for seed in range(SEEDS) if breach_of(seed) is invariant)
    fewest = shrink(seed)
    assert fewest > 1, "one request alone is admitted"
    with pytest.raises(InvariantBreach):
        simulate(seed, fewest)
    simulate(seed, fewest - 1)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="does not fail"):
        shrink(seed)
