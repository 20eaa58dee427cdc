"""After the end of an engine's process, readers get what they would have got, or a clear error."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from ekiden.engine.interface import EndsEngine, EngineDied, Health, UpdateIterator
from ekiden.engine.process import EngineClient
from ekiden.state.request import FinishReason, Request, RequestUpdate
from tests.unit.engine.fake_parts import (
    DEADLY_POSITION,
    DEADLY_TOKEN,
    MODEL_FILE,
    make_config,
    make_deadly_engine,
    make_engine_of_a_file,
    make_request,
)
from tests.unit.engine.holding import no_engine_comes_up
from tests.unit.engine.test_engines import collect, expected, until

KILLS = int(os.environ.get("SOAK_KILLS", "3"))
STREAMS = 32


@asynccontextmanager
async def running() -> AsyncIterator[EngineClient]:
    client = EngineClient(make_deadly_engine, make_config())
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


def kill(client: EngineClient) -> None:
    """Kill the engine's process, unless it has ended already."""
    if client.pid is not None:
        os.kill(client.pid, signal.SIGKILL)


async def read_into(tokens: list[int], stream: UpdateIterator) -> None:
    async for update in stream:
        tokens += update.token_ids


async def dead(client: EngineClient) -> None:
    kill(client)
    await until(lambda: client.health is Health.DEAD)


async def test_streams_go_on_and_waiting_requests_run_after_kills_at_random_moments() -> None:
    """On eight slots; moments are counted in the tokens that all readers together have got."""
    generator = random.Random(KILLS)
    requests = [
        make_request(f"r{index}", max_tokens=generator.randrange(60, 400), prompt=tuple(range(index, index + 30)))
        for index in range(STREAMS)
    ]
    total = sum(request.sampling.max_tokens or 0 for request in requests)
    moments = sorted(generator.sample(range(total * 3 // 4), KILLS))
    given = kills = 0
    async with running() as client:

        async def read(request: Request) -> list[int]:
            nonlocal given, kills
            tokens: list[int] = []
            async for update in client.generate(request):
                tokens += update.token_ids
                given += len(update.token_ids)
                if kills < KILLS and given >= moments[kills] and kills == client.restarts and client.pid is not None:
                    kills += 1
                    kill(client)
            return tokens

        rounds = 0
        # Readers that are far behind the engine kill it when its work is done already, and then only once in a round.
        while kills < KILLS:
            rounds += 1
            answers = await asyncio.gather(*map(read, requests))
            for request, tokens in zip(requests, answers, strict=True):
                assert tokens == expected(request, request.sampling.max_tokens or 0)
            await until(lambda: client.restarts == kills and client.health is Health.OK)
        stats = client.stats()
        assert stats.engine_restarts_total == client.restarts == kills == KILLS
        assert stats.requests_carried_over_total > 0
        assert stats.generation_tokens_total == rounds * total
        assert stats.finished_total == {"length": rounds * STREAMS}
        assert (stats.num_running, stats.num_waiting, stats.kv_blocks_used) == (0, 0, 0)


async def test_a_request_that_ends_engines_is_refused_and_its_neighbours_go_on() -> None:
    """Beside it, in lockstep with it, are requests of the same length: they are at the same place whenever it kills."""
    neighbours = [make_request(f"n{index}", max_tokens=200, prompt=(index, 1, 2)) for index in range(5)]
    deadly = make_request("deadly", max_tokens=200, prompt=(DEADLY_TOKEN, 1, 2))
    async with running() as client:
        readers = [asyncio.create_task(collect(client, each)) for each in (*neighbours[:2], deadly, *neighbours[2:])]
        answers = await asyncio.gather(*readers, return_exceptions=True)
        refused = answers.pop(2)
        assert isinstance(refused, EndsEngine)
        assert answers == [expected(each, 200) for each in neighbours]
        assert client.restarts == 3
        assert client.stats().requests_ending_engines_total == 1
        assert client.stats().finished_total == {"error": 1, "length": 5}
        assert client.health is Health.OK


async def test_a_request_that_ends_engines_alone_ends_two() -> None:
    async with running() as client:
        deadly = make_request("deadly", max_tokens=20, prompt=(1,) * (DEADLY_POSITION - 5))
        tokens: list[int] = []
        with pytest.raises(EndsEngine):
            await read_into(tokens, client.generate(deadly))
        assert tokens == expected(deadly, len(tokens)), "what came before its deadly place was right"
        await until(lambda: client.health is Health.OK)
        assert client.restarts == 2


async def test_without_an_engine_gauges_are_zero_and_counters_are_kept() -> None:
    async with running() as client:
        first = make_request("first", max_tokens=7)
        await collect(client, first)
        streams = [client.generate(make_request(f"r{index}", max_tokens=60_000)) for index in range(3)]
        given = sum([len((await anext(stream)).token_ids) for stream in streams])
        with no_engine_comes_up():
            await dead(client)
            stats = client.stats()
            assert (stats.num_running, stats.num_waiting, stats.kv_blocks_used) == (0, 0, 0)
            assert stats.generation_tokens_total >= 7 + given
            assert stats.finished_total == {"length": 1}
            for stream in streams:
                await stream.aclose()
            await until(lambda: client.stats().finished_total == {"length": 1, "abort": 3})
        await until(lambda: client.health is Health.OK)
        assert client.stats().finished_total == {"length": 1, "abort": 3}
        assert client.stats().num_running == 0


async def test_aborts_deadlines_and_pauses_hold_while_an_engine_restarts() -> None:
    async with running() as client:
        held, gone = make_request("held", max_tokens=60_000), make_request("gone", max_tokens=60_000)
        streams = {each.request_id: client.generate(each) for each in (held, gone)}
        tokens = {name: list((await anext(stream)).token_ids) for name, stream in streams.items()}
        tries, seconds = 0, 0.3
        while len(streams) < 3:  # until there are tokens before the deadline
            late = msgspec.structs.replace(make_request("late", max_tokens=60_000), deadline=time.monotonic() + seconds)
            stream, tries, seconds = client.generate(late), tries + 1, seconds * 4
            if (first := await anext(stream)).token_ids:
                streams["late"], tokens["late"] = stream, list(first.token_ids)

        async def last(name: str) -> RequestUpdate:
            newest = RequestUpdate(name)
            async for newest in streams[name]:
                tokens[name] += newest.token_ids
            return newest

        with no_engine_comes_up():
            kill(client)  # what is asked of an engine that is dead, which nobody has noticed, holds too
            await client.pause("held")
            await client.abort("gone")
            await until(lambda: client.health is Health.DEAD)
            assert (finish := (await last("gone")).finish) is not None
            assert finish.reason is FinishReason.ABORT
            assert (finish := (await last("late")).finish) is not None
            assert finish.reason is FinishReason.DEADLINE
            assert finish.num_output_tokens == len(tokens["late"])
        await until(lambda: client.health is Health.OK and client.stats().num_paused == 1)
        await client.resume("held")
        async for update in streams["held"]:
            tokens["held"] += update.token_ids
            if len(tokens["held"]) >= 3_000:
                break
        assert tokens["held"] == expected(held, len(tokens["held"]))
        assert client.stats().finished_total == {"abort": 1, "deadline": tries}


async def test_newcomers_are_told_that_there_is_no_engine() -> None:
    async with running() as client:
        with no_engine_comes_up():
            await dead(client)
            with pytest.raises(EngineDied, match="being restarted"):
                client.generate(make_request("early", max_tokens=1))


async def test_when_no_engine_can_start_again_what_was_in_flight_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MODEL_FILE, str(tmp_path))
    client = EngineClient(make_engine_of_a_file, make_config())
    await client.start()
    try:
        stream = client.generate(make_request("r", max_tokens=60_000))
        tmp_path.rmdir()
        kill(client)
        with pytest.raises(EngineDied, match="no engine can start again"):
            await read_into([], stream)
        assert client.stats().finished_total == {"error": 1}
        tmp_path.mkdir()
        await until(lambda: client.health is Health.OK)  # it is tried again for those who come later
    finally:
        await client.stop()


async def test_stopping_while_an_engine_restarts_ends_its_streams() -> None:
    client = EngineClient(make_deadly_engine, make_config())
    await client.start()
    stream = client.generate(make_request("r", max_tokens=60_000))
    await anext(stream)
    with no_engine_comes_up():
        await dead(client)
        await client.stop()
    with pytest.raises(EngineDied, match="shutting down"):
        await read_into([], stream)
