"""The API over the real engine core and the fake model, for tests that the scripted engine is too simple for."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI

from ekiden.api.app import create_app
from ekiden.api.binding import bind, url_of
from ekiden.api.server import make_server
from ekiden.backends.fake import FakeRunner
from ekiden.build.core import build_core
from ekiden.build.engines import build_engine
from ekiden.config import Config
from ekiden.dashboard.ports import PagePorts
from ekiden.engine.async_engine import AsyncEngine
from ekiden.engine.interface import ModelCard
from ekiden.engine.parts import BuiltEngine, EngineParts
from ekiden.guard.runtime import Guard
from ekiden.models.chat_template import ChatTemplate
from ekiden.sampling.sampler import Sampler
from ekiden.sampling.structured import GrammarCompiler
from ekiden.state.lineage import Lineage
from tests.api.conftest import memory_client
from tests.api.scripted import MODEL, QUICK, TEMPLATE, VOCAB_SIZE, make_tokenizer

BLOCK = 16
CONTEXT = 1024


@dataclass
class RealCore:
    engine: AsyncEngine
    built: BuiltEngine
    runner: FakeRunner
    app: FastAPI
    http: httpx.AsyncClient
    url: str

    async def complete(self, prompt: Any = "hi", **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"model": MODEL, "prompt": prompt, **fields})

    async def clean(self) -> None:
        """Wait until nothing runs, waits or holds a block, and no call is being answered."""
        async with asyncio.timeout(60):
            while True:
                stats = self.engine.stats()
                left = stats.num_running + stats.num_waiting + stats.num_paused + stats.num_preempted
                flight = self.app.state.doors.generation.flight
                if not (left or stats.kv_blocks_used or flight.exchanges or flight.calls):
                    return
                await asyncio.sleep(0.001)


class StandingClock:
    """A clock for an engine: time passes when a test says so, and not while the machine is slow.

    It is behind the real one, so a moment that is told by that is never past already when the engine hears of it.
    """

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now


def make_runner(
    num_blocks: int = 512, *, before_step: Callable[[int], None] | None = None, vocab_size: int = VOCAB_SIZE
) -> FakeRunner:
    """The fake model, its tokens chosen as the real one's are."""
    tokenizer = make_tokenizer()
    return FakeRunner(
        vocab_size=vocab_size,
        num_blocks=num_blocks,
        block_size=BLOCK,
        max_model_len=CONTEXT,
        max_drafts=4,
        sampler=Sampler(
            eos_token_ids=tokenizer.eos_token_ids, ids_without_token=tokenizer.ids_without_token(vocab_size)
        ),
        before_step=before_step,
    )


def make_parts(runner: FakeRunner) -> EngineParts:
    tokenizer = make_tokenizer()
    card = ModelCard(
        model_id=MODEL, max_model_len=runner.info.max_model_len, vocab_size=runner.info.vocab_size, block_size=BLOCK,
        num_blocks=runner.info.num_blocks, hidden_size=runner.info.hidden_size, created=1_700_000_000,
        fingerprint="ekiden-test",
        lineage=Lineage(settings={"engine.seed": 0}, apart={"server.host": "127.0.0.1"}),
    )  # fmt: skip
    grammars = GrammarCompiler(tokenizer, runner.info.vocab_size)
    return EngineParts(runner=runner, card=card, tokenizer=tokenizer, grammars=grammars)


@asynccontextmanager
async def real_core(
    config: Config | None = None,
    *,
    num_blocks: int = 512,
    before_step: Callable[[int], None] | None = None,
    live: bool = False,
    record: bool = False,
    vocab_size: int = VOCAB_SIZE,
    make_guard: Callable[[AsyncEngine], Guard] | None = None,
    page: PagePorts | None = None,
    clock: StandingClock | None = None,
) -> AsyncIterator[RealCore]:
    """``live`` starts a real server; otherwise the client talks to the application in memory.

    ``record`` writes the ledger that ``config`` names. ``vocab_size``: the rows of the model's head, if it has more
    than the tokenizer has tokens. ``clock``: of an engine that is not recorded.
    """
    config = config or Config()
    runner = make_runner(num_blocks, before_step=before_step, vocab_size=vocab_size)
    parts = make_parts(runner)
    if clock is None:
        built = build_engine(parts, config, record=record)
    else:
        built = BuiltEngine(core=build_core(parts, config, clock=clock), parts=parts)
    async with AsyncEngine(built) as engine:
        assert parts.tokenizer is not None
        app = create_app(
            engine,
            parts.tokenizer,
            ChatTemplate(TEMPLATE),
            config,
            guard=make_guard and make_guard(engine),
            page=page,
        )
        if not live:
            async with memory_client(app) as http:
                yield RealCore(engine, built, runner, app, http, "http://test")
            return
        listener = bind("127.0.0.1", 0)
        server = make_server(app, QUICK)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            async with httpx.AsyncClient(base_url=url_of(listener), timeout=60) as http:
                yield RealCore(engine, built, runner, app, http, url_of(listener))
        finally:
            server.ask_to_stop()
            await task
            listener.close()
