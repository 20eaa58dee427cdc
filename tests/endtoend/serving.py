"""The whole server over the real model, without a socket."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from ekiden.api.app import create_app
from ekiden.build.engines import build_engine
from ekiden.config import CacheConfig, Config, LimitsConfig, SchedulerConfig
from ekiden.engine.async_engine import AsyncEngine
from ekiden.engine.parts import EngineParts
from ekiden.models.load import describe
from ekiden.models.resolve import ModelFiles


@asynccontextmanager
async def server(parts: EngineParts, files: ModelFiles, config: Config | None = None) -> AsyncIterator["Client"]:
    config = config or Config(
        scheduler=SchedulerConfig(max_num_seqs=32, max_num_batched_tokens=512),
        cache=CacheConfig(enable_prefix_caching=True),
        limits=LimitsConfig(max_num_queued_reqs=1000),
    )
    description = describe(files)
    async with AsyncEngine(build_engine(parts, config)) as engine:
        app = create_app(engine, description.tokenizer, description.chat_template, config)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=120) as http:
            yield Client(http, engine)


class Client:
    def __init__(self, http: httpx.AsyncClient, engine: AsyncEngine) -> None:
        self.http = http
        self.engine = engine

    async def chat(self, text: str = "Which colour?", **fields: Any) -> Any:
        body = {
            "model": self.engine.card.model_id,
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": 60,
            **fields,
        }
        response = await self.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        if fields.get("stream"):
            lines = [line for line in response.text.split("\n\n") if line.startswith("data: {")]
            return [json.loads(line.removeprefix("data: ")) for line in lines]
        return response.json()

    async def text(self, text: str = "Which colour?", **fields: Any) -> str:
        (choice,) = (await self.chat(text, **fields))["choices"]
        return str(choice["message"]["content"])
