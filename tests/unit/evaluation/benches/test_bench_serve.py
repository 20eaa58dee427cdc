"""Load on a scripted server: which model is asked for, what is excluded, and what is refused."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvloop

from ekiden.evaluation.benches.engine import Shape
from ekiden.evaluation.benches.serve import bench_serve
from ekiden.evaluation.load.target import Target, TargetError
from ekiden.measure.figures import Figures
from tests.unit.evaluation.loopback import Answer, LoopbackServer

SHAPE = Shape(rows=2, prompt_tokens=3, output_tokens=4, requests=5, concurrency=2)


def answer_with(models: bytes, status: bytes) -> Answer:
    """Lists ``models`` and answers completions with four tokens each."""

    async def answer(path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if path == "/v1/models":
            writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(models), models))
            return
        events = b'data: {"choices":[{"text":"x"}]}\n\n' * 4
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
        text = events + usage + b"data: [DONE]\n\n"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))

    return answer


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[tuple[Target, LoopbackServer]]]]:
    running: list[LoopbackServer] = []

    async def start(
        models: bytes = b'{"data":[{"id":"m"}]}', status: bytes = b"200 OK"
    ) -> tuple[Target, LoopbackServer]:
        running.append(LoopbackServer(answer_with(models, status)))
        return Target.parse(await running[-1].start()), running[-1]

    yield start
    for server in running:
        await server.stop()


def part(figures: Figures, name: str) -> Any:
    return figures[name]


async def test_the_first_model_is_asked_and_the_warm_up_left_out(serve):
    target, server = await serve()
    figures = await bench_serve(target, SHAPE, model_id=None, timeout=60, warm_up=2)
    bodies = server.bodies
    assert len(bodies) == 7
    assert {body["model"] for body in bodies} == {"m"}
    assert len({tuple(body["prompt"]) for body in bodies}) == 7
    assert (figures["requests"], figures["failures"], figures["output_tokens"]) == (5, 0, 20)
    assert part(figures, "lineage")["loop"] == "closed"
    assert part(figures, "lineage")["warm_up_requests"] == 2


def test_the_loop_of_the_command_line_works_too():
    """Its transports are of another class than asyncio's."""

    async def run() -> Figures:
        server = LoopbackServer(answer_with(b'{"data":[{"id":"m"}]}', b"200 OK"))
        try:
            return await bench_serve(Target.parse(await server.start()), SHAPE, model_id=None, timeout=60, warm_up=1)
        finally:
            await server.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(run())
    assert (figures["requests"], figures["failures"], figures["output_tokens"]) == (5, 0, 20)


async def test_an_open_loop_reports_its_rate_and_its_lag(serve):
    target, _ = await serve()
    shape = Shape(rows=2, prompt_tokens=3, output_tokens=4, requests=5, rate=500.0)
    figures = await bench_serve(target, shape, model_id="other", timeout=60, warm_up=0)
    assert part(figures, "lineage")["loop"] == "open"
    assert part(figures, "lineage")["rate"] == 500.0
    assert part(figures, "send_lag_seconds")["n"] == 5
    lag = part(figures, "send_lag_seconds")
    assert 0 <= lag["p50"] <= lag["max"] < figures["duration_seconds"]


@pytest.mark.parametrize(
    ("models", "status", "message"),
    [
        (b'{"data":[]}', b"200 OK", "lists no model"),
        (b"[]", b"200 OK", "lists no model"),
        (b"<html>", b"200 OK", "is the server running?"),
        (b"{}", b"401 Unauthorized", "give its key with --api-key"),
    ],
)
async def test_a_server_without_models_is_told(serve, models, status, message):
    target, _ = await serve(models, status)
    with pytest.raises(TargetError) as caught:
        await bench_serve(target, SHAPE, model_id=None, timeout=60, warm_up=0)
    assert message in str(caught.value)
