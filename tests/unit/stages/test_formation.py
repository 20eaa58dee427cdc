"""Chunk borders, and whom a plan leaves out."""

from hypothesis import given
from hypothesis import strategies as st

from ekiden.backends.fake import FakeRunner
from ekiden.config import CacheConfig, Config, SchedulerConfig, controls_of
from ekiden.engine.engine_core import EngineCore
from ekiden.stages.formation import chunk_size
from ekiden.state.request import Request
from ekiden.state.runner import ChunkRules
from ekiden.state.sampling_params import SamplingParams
from ekiden.state.turn import LeftOutReason
from tests.steps import StepView, StepWatcher


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
    chunk = chunk_size(computed=computed, prompt=prompt, budget=budget, rules=ChunkRules(border=block_size, least=2))
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
        rules = ChunkRules(border=block_size, least=2)
        chunk = chunk_size(computed=computed, prompt=prompt, budget=2 * block_size + extra, rules=rules)
        assert chunk > 0
        if prompt > 1 and block_size > 1:
            assert chunk > 1
        computed += chunk
        steps += 1
    assert steps <= prompt


def test_a_burst_with_one_long_beginning_computes_it_once() -> None:
    """64 requests that share 1,000 tokens: after the first, at least nine in ten prompt tokens are not computed."""
    shared = [(7 * index) % 50 for index in range(1000)]
    runner = FakeRunner(vocab_size=50, num_blocks=500, block_size=16, max_model_len=2048)
    seen: set[LeftOutReason] = set()

    class Watch(StepWatcher):
        def on_step(self, view: StepView) -> None:
            seen.update(reason for _, reason in view.formed.left_out)

    core = EngineCore(
        runner=runner,
        controls=controls_of(
            Config(
                scheduler=SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=256), cache=CacheConfig(block_size=16)
            )
        ),
        cache=CacheConfig(block_size=16),
        clock=lambda: 0.0,
        recorder=Watch(),
    )
    for index in range(64):
        core.add_request(
            Request(
                request_id=str(index),
                prompt_token_ids=(*shared, index % 50, 3, 4),
                sampling=SamplingParams(temperature=0.0, max_tokens=4),
                arrival_time=0.0,
            )
        )
    cached = []
    while core.has_work:
        cached += [update.finish.num_cached_tokens for update in core.step().updates if update.finish]
        core.check_integrity()
    assert len(cached) == 64
    computed = core.stats().prompt_tokens_total
    assert computed - 1003 <= 0.1 * 63 * 1003
    assert sum(cached) == 64 * 1003 - computed
    assert LeftOutReason.PREFIX_IN_FLIGHT in seen
