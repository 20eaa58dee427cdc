"""Health tells the truth, counters never fall, and starting and stopping work in any order."""

import asyncio
import json
import os
import random
import signal
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ekiden.api import prompts
from ekiden.api.app import create_app
from ekiden.build.engines import build_engine
from ekiden.config import LimitsConfig
from ekiden.engine.async_engine import AsyncEngine
from ekiden.engine.interface import EngineDied, Health
from ekiden.engine.process import EngineClient
from ekiden.models.chat_template import ChatTemplate
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams
from tests.api.conftest import Memory, memory_client
from tests.api.real_core import CONTEXT, real_core
from tests.api.scripted import MODEL, TEMPLATE, ScriptedEngine, make_app, make_tokenizer
from tests.known_faults.conftest import CHAT, TEXT, request_of, small, streamed, whole
from tests.known_faults.engine_parts import FAULT_FILE, make_engine, make_engine_parts
from tests.unit.engine.holding import no_engine_comes_up, slow_steps


@dataclass
class Supervised:
    """The API over an engine in a process of its own."""

    engine: EngineClient
    http: httpx.AsyncClient
    fault: Path
    be_quick: Callable[[], None]
    """Steps take long until it is called."""

    async def until(self, status: int) -> None:
        async with asyncio.timeout(60):
            while (await self.http.get("/health")).status_code != status:
                await asyncio.sleep(0.01)

    async def start_request(self) -> "asyncio.Task[httpx.Response]":
        """A request that is certainly being computed."""
        body = request_of(TEXT, max_tokens=CONTEXT, ignore_eos=True)
        call = asyncio.create_task(self.http.post(TEXT, json=body))
        async with asyncio.timeout(60):
            while not self.engine.stats().num_running:
                await asyncio.sleep(0.005)
        return call


@pytest.fixture
async def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Supervised]:
    fault = tmp_path / "fault"
    monkeypatch.setenv(FAULT_FILE, str(fault))
    config = small()
    engine = EngineClient(make_engine, config, stall_timeout=0.3)
    try:
        with slow_steps() as be_quick:
            await engine.start()
            app = create_app(engine, make_tokenizer(), ChatTemplate(TEMPLATE), config)
            async with memory_client(app) as http:
                yield Supervised(engine, http, fault, be_quick)
    finally:
        if engine.pid is not None:
            os.kill(engine.pid, signal.SIGCONT)
        await engine.stop()


async def test_what_the_http_layer_refuses_reaches_an_engine_in_its_own_process(supervised: Supervised) -> None:
    await supervised.until(200)
    assert (await supervised.http.post(TEXT, json=request_of(TEXT, temperature=-1))).status_code == 400
    async with asyncio.timeout(60):  # an idle engine wakes for it
        while supervised.engine.stats().refused_by_door_total != {"invalid": 1}:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["killed", "fault"])
async def test_pb_35_an_engine_that_died_is_told_and_replaced(supervised: Supervised, how: str) -> None:
    """Killed, or ended by an exception in its loop: 503 at once, and a new one, which goes on with what was in
    flight."""
    await supervised.until(200)
    call = await supervised.start_request()
    first = supervised.engine.pid
    assert first is not None
    with no_engine_comes_up():
        if how == "killed":
            os.kill(first, signal.SIGKILL)
        else:
            supervised.fault.touch()
        async with asyncio.timeout(60):
            while supervised.engine.health is not Health.DEAD:
                await asyncio.sleep(0.002)
        assert (await supervised.http.get("/health")).status_code == 503
        refused = await supervised.http.post(TEXT, json=request_of(TEXT))
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_unavailable"
        assert int(refused.headers["retry-after"]) >= 1
    supervised.be_quick()
    await supervised.until(200)
    assert supervised.engine.pid != first
    undisturbed = await supervised.http.post(TEXT, json=request_of(TEXT, max_tokens=CONTEXT, ignore_eos=True))
    assert (await call).json()["choices"] == undisturbed.json()["choices"]
    assert (await whole(supervised.http, TEXT, max_tokens=3))["choices"]


async def test_pb_35_an_engine_that_stands_still_is_told_while_there_is_work(supervised: Supervised) -> None:
    assert supervised.engine.pid is not None
    os.kill(supervised.engine.pid, signal.SIGSTOP)
    await asyncio.sleep(0.4)
    assert (await supervised.http.get("/health")).status_code == 200, "an idle server is healthy"
    body = request_of(TEXT, max_tokens=5, ignore_eos=True)
    call = asyncio.create_task(supervised.http.post(TEXT, json=body))
    await supervised.until(503)
    assert not call.done()
    os.kill(supervised.engine.pid, signal.SIGCONT)
    assert (await call).json()["usage"]["completion_tokens"] == 5
    await supervised.until(200)


async def test_pb_37_huge_bodies_hold_up_neither_probes_nor_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three bodies over the limit, three just under it, and eight prompts near the context's end; probes go on."""
    monkeypatch.setattr("ekiden.api.server.LINGER_SECONDS", 600.0)
    patient = replace(small(), limits=LimitsConfig(body_timeout=600.0))
    async with real_core(patient, live=True) as core:
        huge = request_of(CHAT, text="word " * 3_000_000)  # all of it is read, within LINGER_BYTES of the refusal
        large = request_of(CHAT, text="word " * 1_600_000)
        near = [request_of(TEXT, text="w" * (CONTEXT - 60 + index), max_tokens=2) for index in range(8)]
        stream = asyncio.create_task(streamed(core.http, TEXT, text="go on", max_tokens=200, ignore_eos=True))
        calls = [asyncio.create_task(core.http.post(CHAT, json=body)) for body in (huge, large) * 3]
        calls += [asyncio.create_task(core.http.post(TEXT, json=body)) for body in near]
        probes = 0
        while not all(call.done() for call in calls):
            for path in ("/health", "/metrics"):
                assert (await core.http.get(path)).status_code == 200
            probes += 1
        statuses = [call.result().status_code for call in calls]
        assert statuses == [413, 400] * 3 + [200] * 8
        assert calls[1].result().json()["error"]["code"] == "context_length_exceeded"
        assert probes >= 2
        assert (await stream)[-1]["choices"][0]["finish_reason"] == "length"
        await core.clean()


MUCH = "word " * 2000
CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"text": MUCH})}}]
CALLED = [{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": CALLS}]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": MUCH}]},
        {"messages": [*CALLED, {"role": "tool", "tool_call_id": "c", "content": "ok"}]},
        {"tools": [{"type": "function", "function": {"name": "f", "description": MUCH}}]},
    ],
    ids=["content", "arguments", "tools"],
)
@pytest.mark.parametrize("template", [TEMPLATE, TEMPLATE.replace("tool_calls", "others")], ids=["tools", "plain"])
async def test_pb_37_long_conversations_are_written_out_off_the_event_loop(
    fields: dict[str, Any], template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever in the conversation the length is, and whether or not the template has a place for tools."""
    seen: list[tuple[str, int]] = []

    def note(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def noted(*arguments: Any, **options: Any) -> Any:
            seen.append((name, threading.get_ident()))
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, noted)

    note(ChatTemplate, "render")
    note(prompts, "written_out")
    note(prompts, "explained")
    engine = ScriptedEngine(make_tokenizer())
    async with memory_client(make_app(engine, template=template)) as http:
        response = await http.post(CHAT, json=request_of(CHAT, **fields))
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "render" in {name for name, _ in seen}
    assert threading.get_ident() not in {thread for _, thread in seen}


async def test_r_25_counters_never_fall() -> None:
    """A small pool so that sequences are preempted, random aborts, shared beginnings; every scrape is compared."""
    async with real_core(small(), num_blocks=70) as core:
        generator = random.Random(3)
        before: dict[str, float] = {}
        done = asyncio.Event()

        async def scrape() -> None:
            while not done.is_set():
                for family in text_string_to_metric_families((await core.http.get("/metrics")).text):
                    for sample in family.samples:
                        if family.type != "gauge":
                            key = f"{sample.name}{sorted(sample.labels.items())}"
                            assert sample.value >= before.get(key, 0.0), key
                            before[key] = sample.value
                await asyncio.sleep(0.005)

        async def ask(index: int) -> None:
            call = asyncio.create_task(
                whole(core.http, TEXT, text="shared beginning " * 3 + str(index % 4), max_tokens=200, ignore_eos=True)
            )
            if generator.random() < 0.3:
                for _ in range(generator.randrange(40)):
                    await asyncio.sleep(0)
                while not (core.engine.stats().num_running or call.done()):
                    await asyncio.sleep(0)
                call.cancel()
            await asyncio.wait([call])

        scraping = asyncio.create_task(scrape())
        for _ in range(4):
            await asyncio.gather(*map(ask, range(8)))
        await core.clean()
        done.set()
        await scraping
        stats = core.engine.stats()
        assert stats.preemptions_total > 0
        assert stats.finished_total.get("abort", 0) > 0
        assert stats.prefix_cache_hits_total > 0
        assert sum(value for key, value in before.items() if "generation_tokens_total" in key) > 0


async def test_r_25_metrics_that_fail_end_nothing(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.app.state.metrics, "render", lambda: 1 / 0)
    assert (await memory.http.get("/metrics")).status_code == 500
    assert (await memory.http.get("/health")).status_code == 200
    assert (await memory.complete()).status_code == 200


def request(request_id: str) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    return Request(request_id=request_id, prompt_token_ids=(1, 2), sampling=sampling, arrival_time=0.0)


async def test_r_28_starting_idle_stopping_and_starting_again() -> None:
    engine = AsyncEngine(build_engine(make_engine_parts(small()), small()))
    for _ in range(2):
        async with engine:
            await asyncio.sleep(0.05)  # nothing to do yet
            updates = [update async for update in engine.generate(request("first"))]
            assert sum(len(update.token_ids) for update in updates) == 3
    async with AsyncEngine(build_engine(make_engine_parts(small()), small())):
        pass  # stopped with nothing ever asked
    with pytest.raises(EngineDied, match="not running"):
        engine.generate(request("late"))


def test_the_model_of_these_tests_is_the_toy() -> None:
    assert make_engine_parts(small()).card.model_id == MODEL
