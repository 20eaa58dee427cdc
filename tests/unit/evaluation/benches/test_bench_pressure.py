"""The benches under pressure, on the fake model: what they count, not how fast it is."""

import pytest

from ekiden.backends.fake import FakeRunner
from ekiden.config import CacheConfig, Config, SchedulerConfig
from ekiden.engine.interface import ModelCard
from ekiden.engine.parts import EngineParts
from ekiden.evaluation.benches.pressure import BENCHES, bench_flood, bench_interference, bench_overload, bench_prefix

CONFIG = Config(cache=CacheConfig(block_size=16), scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=256))


@pytest.fixture
def parts() -> EngineParts:
    runner = FakeRunner(num_blocks=2048, max_model_len=8192)
    card = ModelCard(
        model_id="fake", max_model_len=8192, vocab_size=1000, block_size=16, num_blocks=2048, created=0, fingerprint="f"
    )
    return EngineParts(runner=runner, card=card)


def test_a_shared_beginning_is_computed_once(parts):
    figures = bench_prefix(parts, CONFIG, requests=8, shared=160)
    assert figures["prompt_tokens"] == 8 * 184
    # All but the first find the ten blocks of the beginning, and compute their own 24 tokens.
    assert figures["computed"] == 184 + 7 * 24
    assert figures["saved_after_the_first"] == pytest.approx(160 / 184)


def test_both_tenants_are_offered_what_was_said_and_the_fake_model_holds_it(parts):
    figures = bench_flood(parts, CONFIG, seconds=0.5, rate=10.0)
    assert figures["a_rate"] == 200.0
    for name in ("b_alone_on_half_attainment", "b_beside_flood_attainment", "b_beside_flood_fcfs_attainment"):
        assert figures[name] == 1.0


def test_the_stream_and_the_long_prompts_all_get_their_tokens(parts):
    figures = bench_interference(parts, CONFIG, prompts=2, length=200)
    for arm in ("target", "budget_only", "no_chunking"):
        ttft, gap = figures[f"{arm}_last_prompt_ttft_seconds"], figures[f"{arm}_largest_gap_seconds"]
        assert isinstance(ttft, float)
        assert isinstance(gap, float)
        assert 0.0 < ttft < 60.0
        assert 0.0 < gap < 60.0


def test_an_overload_answers_some_and_refuses_the_rest(parts):
    figures = bench_overload(parts, CONFIG, seconds=0.2, factor=2.0)
    capacity, good = figures["capacity_requests_per_second"], figures["goodput_at_capacity"]
    assert isinstance(capacity, float)
    assert isinstance(good, float)
    assert capacity > 0
    assert good > 0


def test_every_bench_has_a_name():
    assert list(BENCHES) == ["interference", "flood", "overload", "prefix"]
