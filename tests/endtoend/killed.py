"""A real server over a socket whose engine is killed while it answers deterministic requests of many kinds."""

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from ekiden.api.app import create_app
from ekiden.api.binding import bind, url_of
from ekiden.api.server import make_server
from ekiden.build.engines import load_engine
from ekiden.config import CacheConfig, Config, LedgerConfig, SchedulerConfig
from ekiden.engine.marks import is_busy
from ekiden.engine.process import EngineClient
from ekiden.evaluation.workloads.synthetic import demo_prompts
from ekiden.models.load import describe
from ekiden.models.resolve import ModelFiles
from tests.api.scripted import QUICK

CLEAR = {"engine_unavailable", "ends_engine"}
"""The codes of the errors that a client may get."""
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

Answer = dict[str, Any]

KINDS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"temperature": 0}),
    (CHAT, {"temperature": 0.9, "seed": 7}),
    (TEXT, {"temperature": 1.0, "seed": 3, "top_p": 0.9, "logprobs": 3}),
    (CHAT, {"temperature": 0.7, "seed": 5, "presence_penalty": 1.0, "frequency_penalty": 0.5, "min_tokens": 20}),
    (TEXT, {"temperature": 0, "repetition_penalty": 1.3, "stop": ["\n\n\n", "the end", "zebra"]}),
    (CHAT, {"temperature": 0, "logprobs": True, "top_logprobs": 2, "n": 2}),
    (CHAT, {"temperature": 0.8, "seed": 11, "guided_regex": "[a-z ]{200}"}),
    (TEXT, {"temperature": 0, "echo": True, "logprobs": 1}),
]


def bodies(count: int, max_tokens: int) -> list[tuple[str, dict[str, Any]]]:
    """Paths and bodies; three of four are streamed."""
    prompts = [demo.prompt for demo in demo_prompts()]
    made = []
    for index in range(count):
        path, fields = KINDS[index % len(KINDS)]
        prompt = f"{index}. {prompts[index % len(prompts)]}"
        what = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
        length = max_tokens + 7 * (index % 5)
        stream = {"stream": True, "stream_options": {"include_usage": True}} if index % 4 else {}
        made.append((path, {**what, "max_tokens": length, "ignore_eos": True, **fields, **stream}))
    return made


class KilledServer:
    def __init__(self, engine: EngineClient, http: httpx.AsyncClient) -> None:
        self.engine, self.http = engine, http
        self.seen = 0
        """Pieces of answers that the streams have got."""
        self.kills = 0

    async def ask(self, path: str, body: dict[str, Any]) -> Answer:
        """The whole answer, or the error. One that comes while an engine restarts is sent again, as clients do."""
        while "being restarted" in (answer := await self._ask(path, body)).get("error", {}).get("message", ""):
            await asyncio.sleep(0.2)
        return answer

    async def _ask(self, path: str, body: dict[str, Any]) -> Answer:
        body = {"model": self.engine.card.model_id, **body}
        if not body.get("stream"):
            answer = (await self.http.post(path, json=body)).json()
            return answer if "error" in answer else folded([answer])
        chunks: list[Answer] = []
        async with self.http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                return dict(json.loads(await response.aread()))
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    chunks.append(json.loads(line.removeprefix("data: ")))
                    self.seen += 1
        failed = next((chunk for chunk in chunks if "error" in chunk), None)
        return failed or folded(chunks)

    async def kill_at(self, moments: Sequence[int]) -> None:
        """Kill the engine after so many more pieces, or (negative) so many steps after it was at work again."""
        for moment in moments:
            start, steps = self.seen, set[tuple[int, ...]]()
            while len(steps) < -moment or self.seen < start + moment or not self._steps():
                steps |= self._steps()
                await asyncio.sleep(0.003)
            assert self.engine.pid is not None
            os.kill(self.engine.pid, signal.SIGKILL)
            before, self.kills = self.engine.restarts, self.kills + 1
            while self.engine.restarts == before:
                await asyncio.sleep(0.003)

    def _steps(self) -> set[tuple[int, ...]]:
        """What the engine is at work on; none while there is none, or it is idle."""
        child = self.engine._child
        at_work = child is not None and child.ready and is_busy(child.words)
        return {tuple(child.words[:8])} if at_work and child is not None else set()


def folded(chunks: list[Answer]) -> Answer:
    """What a client has at the end: text, log-probabilities and the end of each choice, and the usage. How many tokens
    the prefix cache held is left out: a new engine's is empty."""
    found: Answer = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            mine = found.setdefault(f"choice {choice['index']}", {"text": "", "logprobs": [], "finish": None})
            delta = choice.get("delta") or choice.get("message") or {}
            mine["text"] += choice.get("text") or delta.get("content") or ""
            mine["finish"] = choice.get("finish_reason") or mine["finish"]
            if (logprobs := choice.get("logprobs")) is not None:
                lists = [value for value in logprobs.values() if isinstance(value, list)]
                mine["logprobs"] += [list(entry) for entry in zip(*lists, strict=True)]
        if usage := chunk.get("usage"):
            found["usage"] = {name: value for name, value in usage.items() if isinstance(value, int)}
    return found


def moments(kills: int, pieces: int, generator: random.Random) -> list[int]:
    """Random numbers of pieces between kills, ``pieces`` in all; a third of the kills come while an engine catches up,
    but never many of them in a row, since an engine that gives nobody a token again and again is given up."""
    found: list[int] = []
    for _ in range(kills):
        if generator.random() < 1 / 3 and any(moment > 0 for moment in found[-3:]):
            found.append(-generator.randrange(1, 40))
        else:
            found.append(generator.randrange(1, max(2, 2 * pieces // kills)))
    return found


@asynccontextmanager
async def killed_server(files: ModelFiles, ledger: str) -> AsyncIterator[KilledServer]:
    config = Config(
        scheduler=SchedulerConfig(max_num_seqs=24, max_num_batched_tokens=512),
        cache=CacheConfig(kv_cache_size="128MiB", swap_size="64MiB"),
        ledger=LedgerConfig(ledger_dir=ledger),
    )
    engine = EngineClient(load_engine, config)
    await engine.start()
    description = describe(files)
    app = create_app(engine, description.tokenizer, description.chat_template, config)
    listener = bind("127.0.0.1", 0)
    server = make_server(app, QUICK)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=url_of(listener), timeout=None, limits=limits, trust_env=False) as http:
            yield KilledServer(engine, http)
    finally:
        server.ask_to_stop()
        await task
        listener.close()
        await engine.stop()
