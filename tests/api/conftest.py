"""The application in memory, and behind a real server on a free loopback port."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from msgspec.structs import replace

from ekiden.api.binding import bind, url_of
from ekiden.api.server import make_server
from tests.api.scripted import CONTEXT, QUICK, TEMPLATE, ScriptedEngine, make_app, make_tokenizer


@dataclass
class Memory:
    """A client of the application without a network."""

    engine: ScriptedEngine
    app: FastAPI
    http: httpx.AsyncClient

    async def chat(self, messages: Any = None, **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "hi"}] if messages is None else messages
        return await self.http.post("/v1/chat/completions", json={"model": "toy/model", "messages": messages, **fields})

    async def complete(self, prompt: Any = "hi", **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"model": "toy/model", "prompt": prompt, **fields})


def memory_client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")


@asynccontextmanager
async def application(*, context: int = CONTEXT, template: str = TEMPLATE) -> AsyncIterator[Memory]:
    """One of its own, whose model has a context of so many tokens."""
    engine = ScriptedEngine(make_tokenizer())
    engine.card = replace(engine.card, max_model_len=context)
    app = make_app(engine, template=template)
    async with memory_client(app) as http:
        yield Memory(engine, app, http)


@pytest.fixture
async def memory() -> AsyncIterator[Memory]:
    async with application() as memory:
        yield memory


@pytest.fixture
async def wide() -> AsyncIterator[Memory]:
    """With room for instructions, tools and a history."""
    async with application(context=20_000) as memory:
        yield memory


@dataclass
class Live:
    engine: ScriptedEngine
    app: FastAPI
    url: str
    server: Any
    task: "asyncio.Task[None]"


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    """A real server; ``engine`` may be scripted by the test at any time."""
    engine = ScriptedEngine(make_tokenizer())
    app = make_app(engine)
    listener = bind("127.0.0.1", 0)
    url = url_of(listener)
    server = make_server(app, QUICK)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    yield Live(engine, app, url, server, task)
    server.ask_to_stop()
    await task
    listener.close()


def events(text: str) -> list[Any]:
    """The JSON events of a stream; checks that it is one, and that ``[DONE]`` is last and once."""
    assert text.endswith("data: [DONE]\n\n")
    blocks = text.removesuffix("data: [DONE]\n\n").split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith(("data: {", ": ")) for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks if not block.startswith(":")]


def assert_error(response: httpx.Response, status: int, param: str | None = None, code: str | None = None) -> str:
    """The response is an error in OpenAI's shape; returns its message."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) - {"estimate"} == {"message", "type", "param", "code"}
    if param is not None:
        assert error["param"] == param
    if code is not None:
        assert error["code"] == code
    assert isinstance(error["message"], str)
    return error["message"]
