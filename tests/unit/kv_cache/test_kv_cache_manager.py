"""Block tables, prefix sharing and swapping, one rule a test."""

import pytest

from ekiden.kv_cache.kv_cache_manager import KVCacheManager
from ekiden.kv_cache.prefix_cache import prefix_keys, reusable_blocks
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams
from ekiden.state.sequence import Sequence


def make_sequence(name: str, prompt: list[int]) -> Sequence:
    request = Request(
        request_id=name, prompt_token_ids=tuple(prompt), sampling=SamplingParams(temperature=0.0), arrival_time=0.0
    )
    return Sequence(
        request=request,
        seed=0,
        token_ids=list(prompt),
        num_prompt_tokens=len(prompt),
        max_total_tokens=1000,
        stop_token_ids=frozenset(),
    )


def make_manager(*, blocks: int = 10, swap: int = 10, prefix_caching: bool = True) -> KVCacheManager:
    return KVCacheManager(num_blocks=blocks, block_size=4, num_swap_blocks=swap, prefix_caching=prefix_caching)


def prefill(manager: KVCacheManager, sequence: Sequence) -> None:
    manager.admit(sequence)
    sequence.num_computed_tokens = sequence.num_prompt_tokens
    manager.note_computed(sequence, 0, sequence.num_prompt_tokens)


def test_a_prompt_shares_the_blocks_of_an_equal_beginning() -> None:
    manager = make_manager()
    first, second = make_sequence("a", list(range(10))), make_sequence("b", [*range(8), 99, 98, 97])
    prefill(manager, first)
    manager.admit(second)
    assert second.block_table[:2] == first.block_table[:2]
    assert second.num_cached_tokens == second.num_computed_tokens == 8
    assert len(second.block_table) == 3
    manager.check_integrity()


def test_nothing_is_shared_before_its_prefill_has_ended() -> None:
    manager = make_manager()
    first, second = make_sequence("a", list(range(10))), make_sequence("b", list(range(10)))
    manager.admit(first)
    manager.admit(second)
    assert second.num_cached_tokens == 0
    assert not set(first.block_table) & set(second.block_table)


@pytest.mark.parametrize(("prompt", "reused"), [(1, 0), (4, 0), (5, 0), (6, 1), (8, 1), (9, 1), (10, 2)])
def test_two_prompt_tokens_are_always_computed(prompt: int, reused: int) -> None:
    assert reusable_blocks(prompt, 4, 2) == reused


def test_what_others_computed_meanwhile_is_taken_over() -> None:
    manager = make_manager(blocks=20)
    first, second = make_sequence("a", list(range(14))), make_sequence("b", [*range(12), 77, 78])
    manager.admit(first)
    manager.admit(second)
    assert manager.take_over_computed(second) == 0
    manager.note_computed(first, 0, 8)
    assert manager.take_over_computed(second) == 8
    assert second.block_table[:2] == first.block_table[:2]
    assert (second.num_computed_tokens, second.num_cached_tokens) == (8, 8)
    manager.check_integrity()
    manager.note_computed(first, 8, 14)
    assert manager.take_over_computed(second) == 4
    assert manager.take_over_computed(second) == 0
    manager.check_integrity()


def test_a_prefix_survives_its_owner_until_memory_is_needed() -> None:
    manager = make_manager(blocks=4)
    first = make_sequence("a", list(range(10)))
    prefill(manager, first)
    manager.release(first)
    again = make_sequence("b", list(range(10)))
    manager.admit(again)
    assert again.num_cached_tokens == 8
    manager.release(again)
    other = make_sequence("c", list(range(50, 66)))
    manager.admit(other)
    assert other.num_cached_tokens == 0
    manager.release(other)
    cold = make_sequence("d", list(range(10)))
    manager.admit(cold)
    assert cold.num_cached_tokens == 0


def test_shared_blocks_do_not_count_against_admission() -> None:
    manager = make_manager()
    first, second = make_sequence("a", list(range(16))), make_sequence("b", list(range(16)))
    prefill(manager, first)
    assert manager.blocks_to_admit(second) == 1
    manager.release(first)
    # Unreferenced cached blocks are counted as available, so taking them uses availability up.
    assert manager.blocks_to_admit(second) == 4


def test_swapped_content_comes_back_to_as_many_blocks() -> None:
    manager = make_manager()
    sequence = make_sequence("a", list(range(6)))
    prefill(manager, sequence)
    table = list(sequence.block_table)
    out = manager.swap_out(sequence)
    assert [source for source, _ in out] == table
    assert manager.pool.num_available == 10
    manager.check_integrity()
    back = manager.admit(sequence)
    assert [source for source, _ in back] == [target for _, target in out]
    assert sequence.num_computed_tokens == 6
    manager.check_integrity()
    manager.plan_executed()
    manager.check_integrity()


def test_swap_blocks_on_their_way_back_are_not_given_out_in_the_same_plan() -> None:
    manager = make_manager(swap=2)
    first, second = make_sequence("a", list(range(6))), make_sequence("b", list(range(20, 26)))
    prefill(manager, first)
    prefill(manager, second)
    manager.swap_out(first)
    manager.admit(first)
    assert manager.swap_out(second) == [], "the swap space is still being read"
    assert second.num_computed_tokens == 0


def test_without_swap_space_the_content_is_dropped_to_be_computed_again() -> None:
    manager = make_manager(swap=0)
    sequence = make_sequence("a", list(range(6)))
    prefill(manager, sequence)
    assert manager.swap_out(sequence) == []
    assert sequence.num_computed_tokens == 0
    assert sequence.swapped_blocks == 0
    manager.check_integrity()


def test_releasing_a_swapped_sequence_frees_its_swap_blocks() -> None:
    manager = make_manager(swap=2)
    sequence = make_sequence("a", list(range(6)))
    prefill(manager, sequence)
    manager.swap_out(sequence)
    manager.release(sequence)
    manager.check_integrity()
    assert manager.pool.num_available == 10


def test_integrity_check_sees_a_block_named_twice() -> None:
    manager = make_manager(prefix_caching=False)
    first, second = make_sequence("a", [1, 2]), make_sequence("b", [3, 4])
    manager.admit(first)
    manager.admit(second)
    second.block_table = first.block_table
    with pytest.raises(AssertionError, match="ref_count"):
        manager.check_integrity()


def test_prefix_keys_depend_on_everything_before() -> None:
    first, second = prefix_keys([1, 2, 3, 4], 2, 2), prefix_keys([9, 2, 3, 4], 2, 2)
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert prefix_keys([1, 2, 3, 5], 2, 2)[0] == first[0]
