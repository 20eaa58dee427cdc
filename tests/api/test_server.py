"""Binding, the ready line, and ending in order."""

import asyncio
import contextlib
import json
import signal
import socket
import sys
from dataclasses import replace

import httpx
import pytest

from ekiden.api.binding import BindError, bind, url_of
from ekiden.api.server import serve
from tests.api.conftest import Live, events
from tests.api.scripted import MODEL, QUICK, say

PROGRAM = """
import asyncio, sys
from ekiden.api.server import serve
from tests.api.scripted import QUICK, ScriptedEngine, make_app, make_tokenizer

engine = ScriptedEngine(make_tokenizer())

async def start():
    print("start", flush=True)
    if "slow" in sys.argv:
        await asyncio.Event().wait()

async def stop():
    print("stop", flush=True)

sys.exit(serve(lambda: make_app(engine), QUICK, start=start, stop=stop))
"""


@contextlib.asynccontextmanager
async def program(*arguments: str):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_from_start_to_end(number):
    async with program() as process:
        assert await process.stdout.readline() == b"start\n"
        line = (await process.stdout.readline()).decode()
        assert line.startswith("Ekiden is ready on http://127.0.0.1:")
        url = line.split()[4]
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            assert (await http.get("/ready")).status_code == 200
            response = await http.post("/v1/completions", json={"model": MODEL, "prompt": "x"})
            assert response.json()["choices"][0]["text"] == "ok"
        process.send_signal(number)
        output, errors = await process.communicate()
        assert (output, errors, process.returncode) == (b"stop\n", b"", 0)


async def test_a_signal_while_the_engine_starts():
    async with program("slow") as process:
        assert await process.stdout.readline() == b"start\n"
        process.send_signal(signal.SIGTERM)
        output, errors = await process.communicate()
        assert (output, errors, process.returncode) == (b"stop\n", b"", 0)


def test_a_port_in_use(capsys):
    async def never():
        raise AssertionError("the engine must not start")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve(lambda: pytest.fail("no app"), replace(QUICK, port=port), start=never, stop=never) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"port {port} on 127.0.0.1 is in use" in error
    assert "--port" in error


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7"])
def test_an_address_of_another_machine(host):
    with pytest.raises(BindError, match="--host"):
        bind(host, 0)


def test_urls():
    with bind("127.0.0.1", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_running_answers_get_time_to_finish(live: Live):
    live.server._shutdown_timeout = live.server.config.timeout_graceful_shutdown = 60
    live.engine.gate, live.engine.gate_at = asyncio.Event(), 1
    async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
        call = asyncio.create_task(http.post("/v1/completions", json={"model": MODEL, "prompt": "x"}))
        await live.engine.reached_gate.wait()
        live.server.ask_to_stop()
        live.engine.gate.set()
        assert (await call).json()["choices"][0]["text"] == "ok"
    await live.task


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("twice", [True, False])
async def test_answers_that_do_not_finish_end_with_an_error(live: Live, stream, twice):
    """After shutdown_timeout, or at the second signal."""
    live.engine.script = lambda request: say("hello")
    live.engine.gate, live.engine.gate_at = asyncio.Event(), 2
    async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
        body = {"model": MODEL, "prompt": "x", "stream": stream}
        call = asyncio.create_task(http.post("/v1/completions", json=body))
        await live.engine.reached_gate.wait()
        live.server.ask_to_stop()
        if twice:
            live.server.ask_to_stop()
        response = await call
    await live.task
    if stream:
        chunks = events(response.text)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "he"
        error = chunks[-1]["error"]
    else:
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        error = json.loads(response.text)["error"]
    assert error["code"] == "draining"
    assert live.engine.aborted == [live.engine.requests[0].request_id]
