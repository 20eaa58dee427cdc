"""A real server on a loopback port: bad HTTP, clients that leave, and many at once."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from tests.api.conftest import Live
from tests.api.scripted import END, MODEL, say


@pytest.fixture
async def client(live: Live):
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


HEAD = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


async def gone(live: Live, count: int) -> None:
    """Wait until ``count`` requests were aborted."""
    async with asyncio.timeout(60):
        while len(live.engine.aborted) < count:
            await live.engine.someone_aborted.wait()
            live.engine.someone_aborted.clear()


async def quiet(live: Live) -> None:
    """Wait until no exchange is left."""
    async with asyncio.timeout(60):
        while live.app.state.doors.generation.flight.exchanges:
            await asyncio.sleep(0)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("gate_at", [0, 2])
async def test_client_that_leaves_frees_its_requests(live: Live, path, stream, n, gate_at):
    live.engine.gate, live.engine.gate_at = asyncio.Event(), gate_at
    what = {"messages": MESSAGES} if "chat" in path else {"prompt": "x"}
    async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
        call = asyncio.create_task(http.post(path, json={"model": MODEL, "stream": stream, "n": n, **what}))
        await live.engine.reached_gate.wait()
        call.cancel()
        await asyncio.wait([call])
    await gone(live, n)
    assert sorted(live.engine.aborted) == sorted(request.request_id for request in live.engine.requests)
    await quiet(live)


async def test_client_that_stops_reading_is_waited_for_and_then_freed(live: Live):
    """A slow reader holds up only itself: others are answered, and its leaving frees the request."""
    live.engine.script = lambda request: say("x" * 300)
    body = json.dumps({"model": MODEL, "prompt": ["p"] * 400, "stream": True}).encode()
    head = f"{HEAD}content-length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection(*live.url.removeprefix("http://").split(":"), limit=1)
    writer.write(head.encode() + body)
    await reader.readexactly(1)
    async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
        response = await http.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 3})
        assert response.json()["choices"][0]["text"] == "xxx"
    writer.transport.abort()
    await gone(live, 1)
    await quiet(live)


async def test_client_that_closes_before_its_body_is_there(live: Live):
    host, port = live.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{HEAD}content-length: 99\r\n\r\n{{".encode())
    await writer.drain()
    writer.close()
    async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
        assert (await http.get("/health")).status_code == 200
    assert live.engine.requests == []


async def raw(live: Live, data: bytes) -> bytes:
    host, port = live.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    answer = await reader.read()
    writer.close()
    return answer


async def test_bad_http_is_told_in_json(live: Live):
    answer = await raw(live, b"NONSENSE\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


async def test_what_follows_a_request_does_not_harm_its_answer(live: Live):
    """Garbage on the connection while a request is being answered: the answer comes whole, and is the last."""
    live.engine.gate, live.engine.gate_at = asyncio.Event(), 1
    body = json.dumps({"model": MODEL, "prompt": "x"}).encode()
    host, port = live.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(HEAD.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
    await live.engine.reached_gate.wait()
    writer.write(b"\x00garbage\r\n\r\n" + b"x" * 100_000)
    await writer.drain()
    async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
        assert (await http.get("/health")).status_code == 200
    live.engine.gate.set()
    answer = await reader.read()
    writer.close()
    assert answer.count(b"HTTP/1.1 ") == 1
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"] == "ok"


async def test_a_broken_chunk_is_refused_at_once(live: Live):
    answer = await raw(live, HEAD.encode() + b"transfer-encoding: chunked\r\n\r\nzz\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


async def test_huge_headers(live: Live):
    answer = await raw(live, b"GET /health HTTP/1.1\r\nhost: x\r\nx-big: " + b"x" * 70_000)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "headers_too_large"


async def test_chunked_body_over_the_limit_is_answered(live: Live, monkeypatch: pytest.MonkeyPatch):
    """The client sends its nine megabytes first and reads then: the answer must still be there."""
    monkeypatch.setattr("ekiden.api.server.LINGER_SECONDS", 600.0)
    chunk = b"40000\r\n" + b"x" * 0x40000 + b"\r\n"
    end = b"0\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    answer = await raw(live, HEAD.encode() + b"transfer-encoding: chunked\r\n\r\n" + chunk * 36 + end)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.count(b"HTTP/1.1 200 ") == 1  # the connection goes on


async def test_chunked_body_without_end(live: Live):
    async def endless():
        while True:
            yield b"x" * 2**18

    async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
        headers = {"content-type": "application/json"}
        with pytest.raises(httpx.HTTPError):
            await http.post("/v1/completions", content=endless(), headers=headers)
        assert (await http.get("/health")).status_code == 200


async def test_many_streams_at_once(live: Live, client):
    live.engine.script = lambda request: [*request.prompt_token_ids, END]

    async def one(index: int) -> str:
        stream = await client.completions.create(model=MODEL, prompt=f"this is {index}", stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    assert await asyncio.gather(*map(one, range(64))) == [f"this is {index}" for index in range(64)]
