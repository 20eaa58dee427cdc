"""The two engines that doors may use, over the fake model: a thread of this process, and a supervised child."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from ekiden.build.core import build_core
from ekiden.build.engines import build_engine
from ekiden.engine import loop
from ekiden.engine.async_engine import AsyncEngine
from ekiden.engine.interface import Engine, EngineDied, EngineStats, Health
from ekiden.engine.process import EngineClient
from ekiden.models.errors import ModelError
from ekiden.state.controls import ControlChange, ControlState, InvalidControls, SetBy
from ekiden.state.request import FinishReason, RefusalReason, Request, RequestUpdate
from ekiden.state.sequence import PauseReason
from ekiden.state.turn import Pause
from tests.fake_answers import answer_to
from tests.unit.engine.fake_parts import (
    VOCAB,
    make_config,
    make_fake_engine,
    make_fake_parts,
    make_request,
    make_unloadable_engine,
)
from tests.unit.engine.holding import no_engine_comes_up


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something another process does; fails after ``seconds``."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def set_for_a_moment(engine: Engine, change: ControlChange) -> tuple[ControlState, float]:
    """The state with it, and when it expires: as soon as this machine can have it in force before that."""
    seconds = 0.2
    while True:
        end = time.monotonic() + seconds
        try:
            return await engine.set_controls(msgspec.structs.replace(change, expires_at=end)), end
        except InvalidControls as error:
            if "which is past" not in str(error):
                raise
            seconds *= 2


class StoppedOnly(EngineClient):
    """Takes no engine for a wedged one, however slow this machine is, but the one that the test has stopped."""

    stopped: int | None = None

    def stop_engine(self) -> int:
        self.stopped = self.pid
        assert self.stopped is not None
        os.kill(self.stopped, signal.SIGSTOP)
        return self.stopped

    def _silent_for(self) -> float:
        return super()._silent_for() if self.pid == self.stopped else 0.0


def drain(draining: bool) -> ControlChange:
    return ControlChange(values={"draining": draining}, set_by=SetBy.PERSON, who="anna")


async def collect(engine: Engine, request: Request) -> list[int]:
    tokens: list[int] = []
    async for update in engine.generate(request):
        tokens += update.token_ids
    return tokens


def expected(request: Request, count: int) -> list[int]:
    return answer_to(request.prompt_token_ids, VOCAB, count)


@pytest.fixture(params=["thread", "process"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    config = make_config()
    if request.param == "thread":
        async with AsyncEngine(build_engine(make_fake_parts(config), config)) as running:
            yield running
    else:
        client = EngineClient(make_fake_engine, config)
        await client.start()
        try:
            yield client
        finally:
            await client.stop()


async def test_many_streams_at_once_each_get_their_own_tokens(engine: Engine) -> None:
    requests = [make_request(f"r{i}", max_tokens=5 + i % 7, prompt=tuple(range(i, i + 40))) for i in range(40)]
    results = await asyncio.gather(*(collect(engine, request) for request in requests))
    for index, (request, tokens) in enumerate(zip(requests, results, strict=True)):
        assert tokens == expected(request, 5 + index % 7)
    assert engine.health is Health.OK


async def test_closing_a_stream_aborts_its_request(engine: Engine) -> None:
    stream = engine.generate(make_request("long", max_tokens=900_000))
    await anext(stream)
    await stream.aclose()
    async for _ in stream:
        pass  # what had been buffered; the iteration ends
    await until(lambda: engine.stats().finished_total.get("abort") == 1)
    assert engine.stats().kv_blocks_used == 0
    assert engine.stats().num_running == 0


async def test_a_stream_closed_before_it_is_read_is_aborted_too(engine: Engine) -> None:
    await engine.generate(make_request("unread", max_tokens=900_000)).aclose()
    await until(lambda: engine.stats().finished_total.get("abort") == 1)


async def test_abort_ends_the_stream_with_its_terminal_update(engine: Engine) -> None:
    stream = engine.generate(make_request("long", max_tokens=900_000))
    await anext(stream)
    await engine.abort("long")
    last = None
    async for update in stream:
        last = update
    assert last is not None
    assert last.finish is not None
    assert last.finish.reason is FinishReason.ABORT


async def test_a_slow_reader_is_paused_and_holds_up_nobody(engine: Engine) -> None:
    slow_request = make_request("slow", max_tokens=200_000)  # more than a quick engine makes before the pause comes
    slow = engine.generate(slow_request)
    tokens = list((await anext(slow)).token_ids)
    await until(lambda: engine.stats().num_paused == 1)
    assert engine.stats().kv_blocks_used == 0, "a paused sequence keeps its blocks from others"
    quick = make_request("quick", max_tokens=30)
    assert await collect(engine, quick) == expected(quick, 30)
    async for update in slow:
        tokens += update.token_ids
        if len(tokens) >= 5000:
            break
    await slow.aclose()
    assert tokens == expected(slow_request, len(tokens))


async def test_pausing_and_resuming_changes_no_token(engine: Engine) -> None:
    request = make_request("held", max_tokens=900_000)  # it has not ended when the pause comes
    stream = engine.generate(request)
    tokens = list((await anext(stream)).token_ids)
    await engine.pause("held")
    await until(lambda: engine.stats().num_paused == 1)
    await engine.resume("held")
    before = engine.stats().generation_tokens_total
    async for update in stream:
        tokens += update.token_ids
        if len(tokens) >= before + 5_000:
            break
    await stream.aclose()
    assert tokens == expected(request, len(tokens))


async def test_a_refusal_is_the_only_update(engine: Engine) -> None:
    updates = [update async for update in engine.generate(make_request("bad", max_tokens=5, prompt=(VOCAB,)))]
    assert [update.refusal and update.refusal.reason for update in updates] == [RefusalReason.TOKEN_OUT_OF_VOCABULARY]


async def test_an_id_in_flight_cannot_be_used_again(engine: Engine) -> None:
    stream = engine.generate(make_request("same", max_tokens=900_000))
    with pytest.raises(ValueError, match="in flight already"):
        engine.generate(make_request("same", max_tokens=5))
    await stream.aclose()


async def test_a_closed_door_opens_again(engine: Engine) -> None:
    running = engine.generate(make_request("inside", max_tokens=8_000))
    await engine.set_controls(drain(True))
    outside = make_request("outside", max_tokens=5)
    assert [each.refusal and each.refusal.reason async for each in engine.generate(outside)] == [RefusalReason.DRAINING]
    assert sum([len(update.token_ids) async for update in running]) == 8_000
    await engine.set_controls(drain(False))
    assert await collect(engine, outside) == expected(outside, 5)


async def test_controls_change_at_a_boundary_and_back_when_the_time_is_up(engine: Engine) -> None:
    running = engine.generate(make_request("inside", max_tokens=3000))
    await anext(running)
    hour = time.monotonic() + 3600
    change = ControlChange(values={"max_num_seqs": 1}, set_by=SetBy.PERSON, who="anna", why="trial", expires_at=hour)
    state = await engine.set_controls(change)
    assert (state.controls.max_num_seqs, state.controls.epoch, state.changes) == (1, 1, [change])
    assert engine.controls() == state
    with pytest.raises(InvalidControls, match="max_num_seqs is 0; it must be at least 1"):
        await engine.set_controls(ControlChange(values={"max_num_seqs": 0}, set_by=SetBy.PERSON, who="ben"))
    await running.aclose()
    await until(lambda: engine.stats().num_running == engine.stats().num_paused == 0)
    _, end = await set_for_a_moment(engine, msgspec.structs.replace(change, replaces=True))
    await until(lambda: engine.controls().controls.epoch == 3)  # also while the engine is idle
    assert time.monotonic() >= end
    assert engine.controls().controls.max_num_seqs == 8
    assert engine.controls().changes == []


async def test_an_engine_that_is_restarted_keeps_its_door_closed() -> None:
    client = EngineClient(make_fake_engine, make_config())
    await client.start()
    try:
        await client.set_controls(drain(True))
        short, _ = await set_for_a_moment(
            client, ControlChange(values={"max_num_seqs": 1}, set_by=SetBy.PERSON, who="ben")
        )
        assert len(short.changes) == 2
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineDied):
            await client.set_controls(drain(False))
        await until(lambda: client.restarts == 1 and client.health is Health.OK)
        await until(lambda: len(client.controls().changes) == 1)
        assert client.controls().controls.draining
        assert client.controls().controls.max_num_seqs == 8
        (update,) = [update async for update in client.generate(make_request("outside", max_tokens=5))]
        assert update.refusal is not None
        assert update.refusal.reason is RefusalReason.DRAINING
    finally:
        await client.stop()


async def test_what_is_set_while_an_engine_restarts_is_in_force_in_the_next() -> None:
    client = EngineClient(make_fake_engine, make_config())
    await client.start()
    try:
        await client.set_controls(drain(True))
        assert client.pid is not None
        few, none = (ControlChange(values={"max_num_seqs": value}, set_by=SetBy.PERSON, who="ben") for value in (3, 0))
        with no_engine_comes_up():
            os.kill(client.pid, signal.SIGKILL)
            await until(lambda: client.health is Health.DEAD)
            asked = [asyncio.create_task(client.set_controls(change)) for change in (few, none, drain(False))]
            await asyncio.sleep(0)
        fewer, wrong, opened = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(wrong, InvalidControls)
        assert isinstance(fewer, ControlState)
        assert (fewer.controls.draining, fewer.controls.max_num_seqs) == (True, 3), "the older drain came first"
        assert isinstance(opened, ControlState)
        assert opened == client.controls()
        assert (opened.controls.draining, opened.controls.max_num_seqs) == (False, 3)
        assert client.restarts == 1
        assert len(await collect(client, make_request("inside", max_tokens=5))) == 5
    finally:
        await client.stop()


async def test_what_is_set_while_an_engine_restarts_fails_when_the_server_stops() -> None:
    client = EngineClient(make_fake_engine, make_config())
    await client.start()
    assert client.pid is not None
    with no_engine_comes_up():
        os.kill(client.pid, signal.SIGKILL)
        await until(lambda: client.health is Health.DEAD)
        waiting = asyncio.create_task(client.set_controls(drain(True)))
        await asyncio.sleep(0)
        await client.stop()
    with pytest.raises(EngineDied, match="shutting down"):
        await waiting


async def test_an_engine_whose_requests_are_all_paused_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing moves and nobody should wonder: it is neither stalled nor replaced."""
    monkeypatch.setattr(loop, "HEARTBEAT_SECONDS", 0.01)
    reports: list[int] = []
    enough = threading.Event()

    def deliver(updates: list[RequestUpdate], stats: EngineStats | None) -> None:
        assert stats is not None, "an engine that computes nothing tells how it stands"
        reports.append(stats.num_paused)
        if reports[-5:] == [1] * 5:
            enough.set()

    config = make_config()
    running = loop.EngineLoop(build_core(make_fake_parts(config), config), deliver, answer=lambda number, answer: None)
    running.inbox.put(loop.Submit(make_request("held", max_tokens=50)))
    running.inbox.put(Pause("held", PauseReason.OPERATOR, True))
    thread = threading.Thread(target=running.run)
    thread.start()
    told = await asyncio.to_thread(enough.wait, 60)
    running.inbox.put(loop.Stop())
    await asyncio.to_thread(thread.join)
    assert told


async def test_the_end_of_the_last_request_comes_with_the_statistics_that_count_it(engine: Engine) -> None:
    for number in range(1, 6):
        await collect(engine, make_request(f"r{number}", max_tokens=3))
        assert engine.stats().finished_total == {"length": number}
        assert (engine.stats().num_running, engine.stats().kv_blocks_used) == (0, 0)


def test_a_busy_engine_leaves_the_statistics_of_most_steps_out() -> None:
    """But not those of its last step, nor those from which on it does nothing."""
    delivered: list[tuple[list[RequestUpdate], EngineStats | None]] = []

    def deliver(updates: list[RequestUpdate], stats: EngineStats | None) -> None:
        delivered.append((updates, stats))
        if updates and updates[-1].terminal:
            running.inbox.put(loop.Stop())

    config = make_config()
    core = build_core(make_fake_parts(config), config)
    running = loop.EngineLoop(core, deliver, answer=lambda number, answer: None, stats_seconds=3600.0)
    running.inbox.put(loop.Submit(make_request("r", max_tokens=50)))
    running.run()
    ended = next(index for index, (updates, _) in enumerate(delivered) if updates and updates[-1].terminal)
    assert [stats is not None for _, stats in delivered[: ended + 1]] == [True, *[False] * 48, True]
    assert all(stats is not None for _, stats in delivered[ended:])
    last = delivered[ended][1]
    assert last is not None
    assert (last.generation_tokens_total, last.num_running) == (50, 0)


async def test_a_stopped_engine_is_stalled_only_while_there_is_work() -> None:
    client = EngineClient(make_fake_engine, make_config(), stall_timeout=0.3)
    await client.start()
    assert client.pid is not None
    try:
        os.kill(client.pid, signal.SIGSTOP)
        assert client.health is Health.OK, "an idle engine is healthy however silent it is"
        stream = client.generate(make_request("stuck", max_tokens=50))
        await until(lambda: client.health is Health.STALLED)
        os.kill(client.pid, signal.SIGCONT)
        assert sum([len(update.token_ids) async for update in stream]) == 50
        assert client.health is Health.OK
    finally:
        os.kill(client.pid, signal.SIGCONT)
        await client.stop()


async def test_a_wedged_engine_is_replaced() -> None:
    client = StoppedOnly(make_fake_engine, make_config(), stall_timeout=0.2, wedge_timeout=0.5)
    await client.start()
    try:
        first = client.stop_engine()
        request = make_request("stuck", max_tokens=50)
        assert await collect(client, request) == expected(request, 50)
        assert client.pid != first
        assert client.restarts == 1
    finally:
        await client.stop()


async def test_a_model_that_cannot_be_loaded_is_said_once_and_not_retried() -> None:
    client = EngineClient(make_unloadable_engine, make_config())
    with pytest.raises(ModelError, match=r"model\.gguf is truncated"):
        await client.start()
    await client.stop()
    assert client.restarts == 0


async def test_stopping_lets_running_requests_finish_and_refuses_new_ones() -> None:
    client = EngineClient(make_fake_engine, make_config())
    await client.start()
    request = make_request("last", max_tokens=2000)
    stream = client.generate(request)
    first = await anext(stream)
    stopping = asyncio.create_task(client.stop(drain_seconds=300.0))
    tokens = list(first.token_ids)
    async for update in stream:
        tokens += update.token_ids
    assert tokens == expected(request, 2000)
    await stopping
    assert client.health is Health.STOPPED
    with pytest.raises(EngineDied):
        client.generate(make_request("late", max_tokens=1))
