"""Faults that other servers had in batching, capacity and scheduling, on the fake model. Ids: docs/known-faults.md."""

import asyncio
import random

import pytest

from ekiden.backends.fake import FakeRunner
from ekiden.build.engines import build_engine
from ekiden.config import CacheConfig, Config, SchedulerConfig, controls_of
from ekiden.engine.async_engine import AsyncEngine
from ekiden.engine.engine_core import EngineCore
from ekiden.state.request import FinishReason, Request, RequestUpdate
from ekiden.state.sampling_params import SamplingParams
from tests.fake_answers import next_token
from tests.steps import StepView, StepWatcher
from tests.unit.engine.fake_parts import VOCAB, make_config, make_fake_parts, make_request


class Watch(StepWatcher):
    """Which requests had a row in each step."""

    def __init__(self) -> None:
        self.rows: list[set[str]] = []

    def on_step(self, view: StepView) -> None:
        self.rows.append({sequence.request_id for sequence in view.formed.sequences})


def make_core(watch: Watch, *, num_blocks: int = 400, max_num_seqs: int = 4, budget: int = 64) -> EngineCore:
    return EngineCore(
        runner=FakeRunner(vocab_size=VOCAB, num_blocks=num_blocks, block_size=16, max_model_len=4000),
        controls=controls_of(
            Config(
                scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget),
                cache=CacheConfig(block_size=16),
            )
        ),
        cache=CacheConfig(block_size=16),
        clock=lambda: 0.0,
        recorder=watch,
    )


def long_prompt(tokens: int, seed: int = 0) -> tuple[int, ...]:
    source = random.Random(seed)
    return tuple(source.randrange(VOCAB) for _ in range(tokens))


def test_pb_12_an_abort_during_prefill_ends_its_work_within_a_step() -> None:
    watch = Watch()
    core = make_core(watch)
    core.add_request(make_request("gone", max_tokens=100, prompt=long_prompt(1000)))
    core.step()
    assert core.stats().kv_blocks_used > 0
    core.abort("gone")
    updates = core.step().updates
    assert [update.finish.reason for update in updates if update.finish] == [FinishReason.ABORT]
    stats = core.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_blocks_used, stats.generation_tokens_total) == (0, 0, 0, 0)
    assert len(watch.rows) == 1, "the aborted prompt was computed on"


def test_pb_13_requests_that_leave_the_queue_cost_no_prefill() -> None:
    watch = Watch()
    core = make_core(watch)
    for index in range(4):
        core.add_request(make_request(f"busy{index}", max_tokens=200))
    core.step()
    for index in range(10):
        core.add_request(make_request(f"left{index}", max_tokens=500, prompt=long_prompt(100, index)))
    core.add_request(make_request("live", max_tokens=3))
    core.step()
    for index in range(10):
        core.abort(f"left{index}")
    core.step()
    assert core.stats().num_waiting == 1
    core.abort("busy0")
    core.step()
    core.step()
    assert "live" in watch.rows[-1]
    while core.has_work:
        core.step()
    assert not any(name.startswith("left") for rows in watch.rows for name in rows)


def test_pb_15_and_r_14_a_running_stream_moves_in_every_step_while_prompts_are_computed() -> None:
    watch = Watch()
    core = make_core(watch, budget=64)
    core.add_request(make_request("stream", max_tokens=300))
    for _ in range(20):
        core.step()
    for index in range(4):
        core.add_request(make_request(f"long{index}", max_tokens=1, prompt=long_prompt(900, index)))
    begin, moved = len(watch.rows), 0
    while any(name.startswith("long") for name in core.population.by_id) or moved == 0:
        moved += sum(len(update.token_ids) for update in core.step().updates if update.request_id == "stream")
    steps = len(watch.rows) - begin
    assert steps >= 4 * 900 // 64, "the prompts were not cut into chunks"
    assert moved == steps, "the stream stood still in some step"


def test_r_12_asking_for_everything_eight_times_ends_by_length() -> None:
    watch = Watch()
    core = make_core(watch, num_blocks=12, max_num_seqs=8, budget=96)
    for index in range(8):
        request = make_request(f"r{index}", max_tokens=1)
        sampling = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        core.add_request(
            Request(
                request_id=f"r{index}", prompt_token_ids=request.prompt_token_ids, sampling=sampling, arrival_time=0
            )
        )
    ends = []
    while core.has_work:
        ends += [update.finish for update in core.step().updates if update.finish]
        core.check_integrity()
    assert [end.reason for end in ends] == [FinishReason.LENGTH] * 8
    assert {end.num_prompt_tokens + end.num_output_tokens for end in ends} == {12 * 16}


async def test_r_03_slow_readers_miss_nothing() -> None:
    config = make_config()
    async with AsyncEngine(build_engine(make_fake_parts(config), config)) as engine:

        async def read(index: int) -> tuple[Request, list[int]]:
            request = make_request(f"r{index}", max_tokens=600, prompt=(index, index + 1))
            tokens: list[int] = []
            async for update in engine.generate(request):
                tokens += update.token_ids
                for _ in range(3 * index):
                    await asyncio.sleep(0)
            return request, tokens

        for request, tokens in await asyncio.gather(*(read(index) for index in range(6))):
            history = list(request.prompt_token_ids)
            for token in tokens:
                assert token == next_token(history, VOCAB)
                history.append(token)
            assert len(tokens) == 600


async def test_r_08_two_hundred_at_once_never_get_each_others_answers() -> None:
    config = make_config()
    source = random.Random(8)
    async with AsyncEngine(build_engine(make_fake_parts(config), config)) as engine:
        gate = asyncio.Semaphore(32)

        async def ask(index: int) -> int:
            request = make_request(f"r{index}", max_tokens=source.randrange(1, 40), prompt=long_prompt(9, index))
            leaves = source.random() < 0.2
            history = list(request.prompt_token_ids)
            async with gate:
                stream = engine.generate(request)
                async for update in stream:
                    for token in update.token_ids:
                        assert token == next_token(history, VOCAB), f"{request.request_id} got another's token"
                        history.append(token)
                    if leaves:
                        await stream.aclose()
            told = len(history) - len(request.prompt_token_ids)
            assert leaves or told == request.sampling.max_tokens
            return told

        assert all(await asyncio.gather(*(ask(index) for index in range(200)))), "even who leaves has had a token"


async def test_r_13_a_reader_may_time_out_and_read_on_and_its_iteration_ends() -> None:
    config = make_config()
    async with AsyncEngine(build_engine(make_fake_parts(config), config)) as engine:
        stream = engine.generate(make_request("read", max_tokens=5000))
        idle = engine.generate(make_request("idle", max_tokens=50))
        tokens = list((await anext(stream)).token_ids)
        await engine.pause("read")
        while True:  # what was on its way when the pause came, then silence
            try:
                update = await asyncio.wait_for(anext(stream), timeout=0.2)
            except TimeoutError:
                break
            tokens += update.token_ids
        assert len(tokens) < 5000
        await engine.resume("read")
        async for update in stream:
            tokens += update.token_ids
        assert len(tokens) == 5000
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert sum([len(update.token_ids) async for update in idle]) == 50


def test_r_04_updates_that_were_handed_out_do_not_change() -> None:
    core = make_core(Watch(), num_blocks=8, max_num_seqs=4)
    for index in range(4):
        core.add_request(make_request(f"r{index}", max_tokens=60, prompt=(index, 5)))
    kept: list[RequestUpdate] = []
    copies: list[tuple[str, tuple[int, ...]]] = []
    while core.has_work:
        updates = core.step().updates
        kept += updates
        copies += [(update.request_id, tuple(update.token_ids)) for update in updates]
    assert core.stats().preemptions_total > 0
    assert [(update.request_id, update.token_ids) for update in kept] == copies
    for index in range(4):
        history = [index, 5]
        for update in kept:
            if update.request_id == f"r{index}":
                for token in update.token_ids:
                    assert token == next_token(history, VOCAB)
                    history.append(token)
        assert len(history) == 62
