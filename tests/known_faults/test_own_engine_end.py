"""After the end of an engine's process metrics, ledger and clients tell the same story."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ekiden.api.app import create_app
from ekiden.api.metrics import LABELS
from ekiden.config import LedgerConfig
from ekiden.engine.process import EngineClient
from ekiden.evidence.decision_replay import replay
from ekiden.evidence.explain import explain
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.runs import find_request
from ekiden.ledger.records import ENGINE_ENDED
from ekiden.ledger.retention import runs_in
from ekiden.models.chat_template import ChatTemplate
from tests.api.conftest import memory_client
from tests.api.scripted import TEMPLATE, make_tokenizer
from tests.known_faults.conftest import TEXT, request_of, small
from tests.known_faults.engine_parts import MODEL_FILE, make_engine_of_a_file
from tests.unit.engine.holding import no_engine_comes_up, slow_steps

RUNNING = 12
LENGTH = 700


class Server:
    """Whose steps take long until ``be_quick`` is called."""

    def __init__(
        self, engine: EngineClient, http: httpx.AsyncClient, folder: Path, model: Path, be_quick: Callable[[], None]
    ) -> None:
        self.engine, self.http, self.folder, self.model, self.be_quick = engine, http, folder, model, be_quick

    async def metrics(self) -> dict[str, float]:
        families = text_string_to_metric_families((await self.http.get("/metrics")).text)
        found = {}
        for sample in (sample for family in families for sample in family.samples):
            labels = [value for label, value in sample.labels.items() if label not in LABELS]
            found[" ".join([sample.name.removeprefix("ekiden:"), *labels])] = sample.value
        return found

    async def ask(self, number: int) -> httpx.Response:
        body = request_of(TEXT, f"story {number}", max_tokens=LENGTH, ignore_eos=True)
        return await self.http.post(TEXT, json=body, headers={"x-request-id": f"own-{number}"})

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(60):
            while not await condition():
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def killed_with_all_running(self) -> AsyncIterator[list["asyncio.Task[httpx.Response]"]]:
        """The next engine comes up when the block ends."""
        calls = [asyncio.create_task(self.ask(number)) for number in range(RUNNING)]

        async def all_run() -> bool:
            stats = self.engine.stats()
            if stats.num_running < RUNNING or stats.generation_tokens_total < 100:
                return False
            with LedgerReader(runs_in(self.folder)[0]) as reader:  # written a moment later
                return len(reader.live_requests()) == RUNNING

        async def dead() -> bool:
            return (await self.http.get("/health")).status_code == 503

        await self.until(all_run)
        assert self.engine.pid is not None
        with no_engine_comes_up():
            os.kill(self.engine.pid, signal.SIGKILL)
            await self.until(dead)
            self.be_quick()
            yield calls


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    model = tmp_path / "model"
    model.mkdir()
    monkeypatch.setenv(MODEL_FILE, str(model))
    folder = tmp_path / "ledger"
    config = replace(small(max_num_seqs=16), ledger=LedgerConfig(ledger_dir=str(folder)))
    engine = EngineClient(make_engine_of_a_file, config)
    try:
        with slow_steps() as be_quick:
            await engine.start()
            app = create_app(engine, make_tokenizer(), ChatTemplate(TEMPLATE), config)
            async with memory_client(app) as http:
                yield Server(engine, http, folder, model, be_quick)
    finally:
        await engine.stop()


async def test_own_13_after_a_kill_gauges_are_of_the_living_engine_and_counters_add_up(server: Server) -> None:
    async with server.killed_with_all_running() as calls:
        between = await server.metrics()
    assert between["num_requests_running"] == between["kv_cache_usage_perc"] == between["num_requests_waiting"] == 0
    assert between["generation_tokens_total"] >= 100
    answers = await asyncio.gather(*calls)
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [LENGTH] * RUNNING
    after = await server.metrics()
    assert after["request_success_total length"] == RUNNING
    assert after["request_success_total error"] == 0
    assert after["generation_tokens_total"] == RUNNING * LENGTH
    assert after["engine_restarts_total"] == 1
    assert after["requests_carried_over_total"] == RUNNING
    for name, value in between.items():
        if name.endswith(("_total", "_count", "_sum", "_bucket")):
            assert after[name] >= value, name
    await server.engine.stop()
    newest, dead = runs_in(server.folder)
    request_id = answers[0].headers["x-ekiden-request-id"]
    with LedgerReader(newest) as reader:
        (row,) = reader.requests_named(request_id)
        told = explain(reader, row)
        assert told.reason == "length"
        assert told.output_tokens == LENGTH
        assert told.carried_over is not None
        assert told.carried_over.run_id == dead.stem
        assert 0 < told.carried_over.output_tokens < LENGTH
        assert told.ttft_seconds is not None
        assert 0 < told.ttft_seconds < told.e2e_seconds
        assert f"from an engine that ended (explain --run {dead.stem} tells of that)" in told.headline
        assert sum(cause.seconds for cause in told.causes) == pytest.approx(told.e2e_seconds, abs=1e-5)
        assert {"earlier_engine", "recomputing_after_engine_end", "own_decode"} <= {each.cause for each in told.causes}
        assert "taken over from an engine that had ended" in told.life[1].words
        result = replay(reader.header, reader.everything())
        assert result.difference is None
        assert result.turns > LENGTH // 2
    with LedgerReader(dead) as reader:
        assert reader.live_requests() == []
        (row,) = reader.requests_named(request_id)
        told = explain(reader, row)
        assert (told.status, told.reason) == ("finished", ENGINE_ENDED)
        assert "Its engine ended (the engine process ended unexpectedly (exit code -9))" in told.headline
        assert sum(cause.seconds for cause in told.causes) == pytest.approx(told.e2e_seconds, abs=1e-5)
        assert replay(reader.header, reader.everything()).difference is None


async def test_own_13_requests_that_die_with_their_engine_are_counted_and_explained_as_errors(server: Server) -> None:
    server.model.rmdir()  # no other engine can start
    async with server.killed_with_all_running() as calls:
        pass
    answers = await asyncio.gather(*calls)
    assert {(answer.status_code, answer.json()["error"]["code"]) for answer in answers} == {(503, "engine_unavailable")}
    after = await server.metrics()
    assert after["request_success_total error"] == RUNNING
    assert after["e2e_request_latency_seconds_count"] == RUNNING
    assert after["num_requests_running"] == 0
    reader, (row,) = find_request(server.folder, answers[0].headers["x-ekiden-request-id"])
    with reader:
        told = explain(reader, row)
    assert (told.status, told.reason) == ("finished", ENGINE_ENDED)


async def test_a_ledger_whose_writer_was_killed_says_so_though_nobody_closed_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a power failure: there is no supervisor that could write the ends."""
    monkeypatch.setattr("ekiden.engine.process.record_dead_ends", lambda *told: None)
    async with server.killed_with_all_running() as calls:
        pass
    dead = runs_in(server.folder)[-1]
    with LedgerReader(dead) as reader:
        row = reader.request(1)
        assert row is not None
        told = explain(reader, row)
    assert (told.status, told.reason) == ("finished", "error")
    assert "Failed (the engine ended without recording the request's end)" in told.headline
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
