"""The benches on the fake model: their keys, their counts, and what they refuse."""

from dataclasses import replace

import pytest

from ekiden.backends.fake import FakeRunner
from ekiden.config import CacheConfig, Config, SchedulerConfig
from ekiden.engine.interface import ModelCard
from ekiden.engine.parts import EngineParts
from ekiden.evaluation.benches.engine import Shape, bench_engine, bench_scheduler, requests_for, sized
from ekiden.evaluation.benches.raw import BareLoop, TooManyRows, bench_raw
from tests.fake_answers import next_token

COMMON_KEYS = {
    "requests",
    "failures",
    "duration_seconds",
    "prompt_tokens",
    "output_tokens",
    "prompt_tokens_per_second",
    "output_tokens_per_second",
    "total_tokens_per_second",
    "decode_tokens_per_second",
    "step_seconds",
    "host_share",
}
CONFIG = Config(cache=CacheConfig(block_size=16), scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64))
SHAPE = Shape(rows=4, prompt_tokens=20, output_tokens=5, requests=10, seed=1)


def make_parts() -> EngineParts:
    runner = FakeRunner()
    card = ModelCard(
        model_id="fake",
        max_model_len=runner.info.max_model_len,
        vocab_size=runner.info.vocab_size,
        block_size=runner.info.block_size,
        num_blocks=runner.info.num_blocks,
        created=0,
        fingerprint="ekiden-test",
    )
    return EngineParts(runner=runner, card=card)


@pytest.fixture
def parts() -> EngineParts:
    return make_parts()


def test_the_engine_bench_counts_every_token_and_names_what_it_ran(parts):
    told = []
    figures = bench_engine(parts, CONFIG, SHAPE, on_finish=lambda: told.append(1))
    assert set(figures) >= COMMON_KEYS | {"ttft_seconds", "tpot_seconds", "e2e_seconds", "lineage"}
    assert (figures["requests"], figures["failures"]) == (10, 0)
    assert (figures["prompt_tokens"], figures["output_tokens"]) == (200, 50)
    assert len(told) == 10
    lineage = figures["lineage"]
    assert isinstance(lineage, dict)
    assert lineage["model"] == "fake"
    assert lineage["batching"] == "continuous"


def test_a_closed_loop_counts_arrival_from_the_moment_of_entry(parts):
    figures = bench_engine(parts, CONFIG, replace(SHAPE, concurrency=1))
    assert figures["output_tokens"] == 50
    ttft, e2e = figures["ttft_seconds"], figures["e2e_seconds"]
    assert isinstance(ttft, dict)
    assert isinstance(e2e, dict)
    # One at a time: nobody waits for anybody, so the slowest request took less than the run.
    duration = figures["duration_seconds"]
    assert isinstance(duration, float)
    assert e2e["max"] < duration


def test_an_open_loop_spreads_its_arrivals(parts):
    shape = replace(SHAPE, rate=2_000.0)
    requests = requests_for(shape, vocab_size=1000, start=100.0)
    arrivals = [request.arrival_time for request in requests]
    assert arrivals == sorted(set(arrivals))
    assert arrivals[0] > 100.0
    assert bench_engine(parts, CONFIG, shape)["output_tokens"] == 50


def test_rows_size_the_engine_and_its_budget():
    config = sized(Config(), 600)
    assert config.scheduler.max_num_seqs == 600
    assert config.scheduler.max_num_batched_tokens == 600 + 2 * 32
    assert sized(Config(), 8).scheduler.max_num_batched_tokens == Config().scheduler.max_num_batched_tokens


def test_the_raw_bench_counts_decode_rows_only_in_its_decode_rate(parts):
    figures = bench_raw(parts.runner, CONFIG, SHAPE)
    assert set(figures) >= COMMON_KEYS
    assert (figures["prompt_tokens"], figures["output_tokens"]) == (80, 20)
    prefill, decode = BareLoop(parts.runner, CONFIG, SHAPE).run(5)
    assert sum(step.prefill_tokens for step in prefill) == 80
    assert [step.decode_tokens for step in decode] == [4] * 4


def test_the_raw_loop_writes_what_the_model_says(parts):
    """The chunked prefill and the block tables are right: the fake model would answer otherwise if they were not."""
    seen: dict[int, dict[int, int]] = {}
    runner = parts.runner

    class Watched:
        info = runner.info

        def execute(self, plan):
            for row in plan.rows:
                seen.setdefault(row.slot, {}).update(enumerate(row.token_ids, row.start))
            return runner.execute(plan)

        def check(self) -> None:
            runner.check()

        def close(self) -> None:
            runner.close()

    BareLoop(Watched(), CONFIG, SHAPE).run(5)
    assert len(seen) == 4
    for at in seen.values():
        tokens = [at[position] for position in range(len(at))]
        assert len(tokens) == 24
        for position in range(20, 24):
            assert tokens[position] == next_token(tokens[:position], 1000)


def test_rows_that_do_not_fit_the_pool_are_refused_with_the_way_out(parts):
    with pytest.raises(TooManyRows, match="raise --kv-cache-size"):
        bench_raw(parts.runner, CONFIG, replace(SHAPE, rows=200))


def test_the_scheduler_bench_measures_full_steps():
    figures = bench_scheduler(rows=8, waiting=50, steps=5, seed=0, order="fair", tenants=3)
    assert (figures["running"], figures["waiting"], figures["steps"], figures["tenants"]) == (8, 50, 5, 3)
    step = figures["step_seconds"]
    assert isinstance(step, dict)
    assert step["n"] == 5
