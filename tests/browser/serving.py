"""A real server with the fake model, for tests of its page: keys, a guard, a ledger, and a load of several tenants."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ekiden.api.keys import new_key
from ekiden.config import Config, LedgerConfig, LimitsConfig, SchedulerConfig, ServerConfig, controls_of
from ekiden.dashboard.ports import PagePorts
from ekiden.engine.async_engine import AsyncEngine
from ekiden.evaluation.report.shelf import Shelf
from ekiden.guard.hands import EngineHands
from ekiden.guard.runtime import Guard
from ekiden.guard.senses import LedgerSense
from ekiden.guardrails.rules import Rules, load_rules
from ekiden.release.desk import ReleaseDesk
from ekiden.sampling.reduction import FloatMatrix
from ekiden.sampling.sampler import Sampler
from ekiden.state.plan import Row, RowResult
from tests.api.real_core import RealCore, real_core
from tests.api.scripted import END, MODEL, say

STEP_SECONDS = 0.004
"""What a step of the model takes: long enough for requests to meet, short for the tests."""
TENANTS = ("ann", "bob", "flood", "flood", "flood", "flood")
SCOPES = {"admin": ("admin", "inference"), "second": ("admin", "inference"), "user": ("inference",)}
"""The keys, by their names."""


class Speaking(Sampler):
    """Chooses the bytes of a text and then the end, whatever the model found likely."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._tokens = [*say(text), END]

    def sample(self, logits: FloatMatrix, rows: list[Row]) -> list[RowResult]:
        made = [row.end - row.sampling.num_prompt_tokens for row in rows if row.sampling is not None]
        return [RowResult((self._tokens[number % len(self._tokens)],)) for number in made]


@dataclass(slots=True)
class Served:
    core: RealCore
    guard: Guard
    keys: dict[str, str]
    step_seconds: float = STEP_SECONDS
    calls: "list[asyncio.Task[Any]]" = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.core.url

    def send(self, tenant: str = "user", *, prompt: str = "hello", tokens: int = 64, **fields: Any) -> Any:
        """A request on its way, as a task that gives its response. ``tenant`` is by the header."""
        headers = {"authorization": f"Bearer {self.keys['admin']}", "x-tenant": tenant}
        body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **fields}
        call = asyncio.ensure_future(self.core.http.post("/v1/completions", json=body, headers=headers))
        self.calls.append(call)
        return call

    @contextmanager
    def slow(self) -> Iterator[None]:
        """Steps take so long that no answer comes to its end before a test has done something to it."""
        before, self.step_seconds = self.step_seconds, 0.1
        try:
            yield
        finally:
            self.step_seconds = before

    @asynccontextmanager
    async def load(
        self, tenants: Iterable[str] = ("ann", "bob", "flood", "flood"), **fields: Any
    ) -> AsyncIterator[None]:
        """Requests of these tenants without an end, one at a time for each mention of it."""

        async def keep_sending(tenant: str) -> None:
            while True:
                await self.send(tenant, **fields)

        senders = [asyncio.ensure_future(keep_sending(tenant)) for tenant in tenants]
        try:
            yield
        finally:
            for sender in senders:
                sender.cancel()
            await self.quiet()

    async def quiet(self) -> None:
        """Ends what is on its way."""
        for call in self.calls:
            call.cancel()
            with suppress(BaseException):
                await call
        self.calls.clear()


@asynccontextmanager
async def served(
    folder: Path,
    *,
    slots: int = 4,
    keys: bool = True,
    record: bool = True,
    step_seconds: float = STEP_SECONDS,
    num_blocks: int = 512,
    order: str = "fair",
    says: str | None = None,
    ledger: Path | None = None,
    releases: Path | None = None,
) -> AsyncIterator[Served]:
    """A server of its own. Without ``keys`` it is open, as a loopback server is by default.

    ``num_blocks``: of the KV pool, 16 tokens each. ``says``: what the model answers to whatever it is asked. ``ledger``
    and ``releases`` are the folders of recorded runs and of releases.
    """
    given, file = {}, folder / "keys.toml"
    for name, scopes in SCOPES.items():
        given[name], digest = new_key()
        with file.open("a", encoding="utf-8") as out:
            out.write(f'[[keys]]\nname = "{name}"\nhash = "{digest}"\nscopes = {list(scopes)}\n')
    config = Config(
        server=ServerConfig(api_keys_file=str(file) if keys else None, tenant_header="x-tenant"),
        scheduler=SchedulerConfig(max_num_seqs=slots, scheduling_policy=order, num_speculative_tokens=0),
        limits=LimitsConfig(max_num_queued_reqs=200),
        ledger=LedgerConfig(ledger=record, ledger_dir=str(ledger or folder / "ledger")),
    )
    made: list[Guard] = []
    loop = asyncio.get_running_loop()

    def make_guard(engine: AsyncEngine) -> Guard:
        rules: Rules = load_rules(None)
        made.append(
            Guard(
                rules,
                EngineHands(engine, lambda: loop),
                LedgerSense(),
                mode="watch",
                configured=controls_of(config),
                server="127.0.0.1",
            )
        )
        return made[0]

    def take_time(step: int) -> None:
        time.sleep(server.step_seconds)

    page = PagePorts(
        evaluations=lambda: Shelf(folder / "evaluations"),
        releases=lambda: ReleaseDesk(releases or folder / "releases", core.engine, loop),
    )
    async with real_core(
        config,
        record=record,
        live=True,
        make_guard=make_guard,
        page=page,
        num_blocks=num_blocks,
        before_step=take_time,
    ) as core:
        if says is not None:
            core.runner._sampler = Speaking(says)
        server = Served(core, made[0], given, step_seconds)
        try:
            yield server
        finally:
            await server.quiet()
