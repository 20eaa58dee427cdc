"""Chunk borders, and whom a plan leaves out."""

from hypothesis import given
from hypothesis import strategies as st

from ekiden.stages.formation import chunk_size


@given(
    prompt=st.integers(1, 500),
    blocks_done=st.integers(0, 20),
    budget=st.integers(0, 300),
    block_size=st.sampled_from([1, 4, 32]),
)
def test_chunks_end_at_block_borders_and_leave_no_single_token(
    prompt: int, blocks_done: int, budget: int, block_size: int
) -> None:
    computed = min(blocks_done * block_size, (prompt - 1) // block_size * block_size)
    chunk = chunk_size(computed=computed, prompt=prompt, budget=budget, block_size=block_size)
    left = prompt - computed - chunk
    assert 0 <= chunk <= budget
    assert left >= 0
    if left:
        assert (computed + chunk) % block_size == 0
        assert left != 1 or chunk == 0


@given(prompt=st.integers(1, 2000), extra=st.integers(0, 100), block_size=st.sampled_from([1, 2, 8, 32]))
def test_a_budget_of_two_blocks_always_gets_a_prompt_done(prompt: int, extra: int, block_size: int) -> None:
    computed, steps = 0, 0
    while computed < prompt:
        chunk = chunk_size(computed=computed, prompt=prompt, budget=2 * block_size + extra, block_size=block_size)
        assert chunk > 0
        if prompt > 1 and block_size > 1:
            assert chunk > 1
        computed += chunk
        steps += 1
    assert steps <= prompt
