"""Every request is counted once, under how it ended: on each door, streamed and not."""

import asyncio
from collections import Counter
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from ekiden.config import CacheConfig, Config, LedgerConfig, SchedulerConfig, ServerConfig
from ekiden.engine.interface import LATENCIES, LATENCY_BOUNDS
from ekiden.evidence.decision_replay import replay
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.why import Question, why
from ekiden.ledger.records import REFUSED
from tests.api.real_core import BLOCK, RealCore, real_core
from tests.api.scripted import MODEL
from tests.api.test_admin import Gate

DOORS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40},
    "/v1/completions": {"prompt": "hi", "max_tokens": 40},
    "/v1/responses": {"input": "hi", "max_output_tokens": 40},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40},
}
EACH = 5


def config(tmp_path: Path) -> Config:
    return Config(
        scheduler=SchedulerConfig(max_num_seqs=EACH, max_num_batched_tokens=EACH + 4 * BLOCK),
        cache=CacheConfig(block_size=BLOCK),
        ledger=LedgerConfig(ledger_dir=str(tmp_path / "ledger")),
    )


async def counted(core: RealCore) -> Counter[str]:
    """How many requests ended in which way, by the metrics."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families((await core.http.get("/metrics")).text):
        for sample in family.samples:
            if sample.name == "ekiden:request_success_total":
                found[sample.labels["finished_reason"]] += int(sample.value)
            elif sample.name == "ekiden:admission_rejections_total":
                found[f"refused {sample.labels['reason']}"] += int(sample.value)
    return +found


class Crowd:
    """Requests of one door that end in the four ways."""

    def __init__(self, core: RealCore, gate: Gate, path: str, *, stream: bool) -> None:
        self.core, self.gate, self.path = core, gate, path
        self.body = {"model": MODEL, "temperature": 0, **DOORS[path], "stream": stream}

    def send(self, **fields: Any) -> "asyncio.Task[httpx.Response]":
        return asyncio.create_task(self.core.http.post(self.path, json=self.body | fields))

    async def until(self, running: int, waiting: int) -> None:
        """Wait until all are in the engine's hands, and then take few steps, so that none ends by itself."""
        calls = self.core.app.state.doors.generation.flight.calls
        async with asyncio.timeout(60):
            while len(calls) != running + waiting:
                await asyncio.sleep(0.002)

        def so_many() -> bool:
            stats = self.core.engine.stats()
            return (stats.num_running, stats.num_waiting) == (running, waiting)

        await self.gate.step_until(so_many)

    async def leave(self, calls: list["asyncio.Task[httpx.Response]"]) -> None:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def run(self) -> None:
        self.gate.open.clear()
        running = [self.send() for _ in range(EACH)]
        await self.until(EACH, 0)
        queued = [self.send() for _ in range(EACH)]
        await self.until(EACH, EACH)
        await self.leave(queued)
        await self.until(EACH, 0)
        await self.leave(running)
        await self.until(0, 0)
        refused = await asyncio.gather(*(self.send(temperature=-1) for _ in range(EACH)))
        assert [response.status_code for response in refused] == [400] * EACH
        self.gate.open.set()
        whole = await asyncio.gather(*(self.send() for _ in range(EACH)))
        assert [response.status_code for response in whole] == [200] * EACH
        await self.core.clean()


async def settled(core: RealCore, at_least: int) -> Counter[str]:
    """The counts, once there are so many: a note of a refusal is counted at the next step."""
    async with asyncio.timeout(60):
        while (found := await counted(core)).total() < at_least:
            await asyncio.sleep(0.005)
    return found


async def test_own_12_the_four_ways_to_end_add_up(tmp_path: Path) -> None:
    gate = Gate()
    async with real_core(config(tmp_path), before_step=gate, live=True, record=True) as core:
        before: Counter[str] = Counter()
        try:
            for path in DOORS:
                for stream in (False, True):
                    await Crowd(core, gate, path, stream=stream).run()
                    now = await settled(core, before.total() + 4 * EACH)
                    added = now - before
                    before = now
                    whole = added["stop"] + added["length"]
                    assert (added["abort"], added["refused invalid"], whole) == (2 * EACH, EACH, EACH), (path, stream)
                    assert added.total() == 4 * EACH
        finally:
            gate.open.set()
        ledger = core.engine.ledger_path
        assert ledger is not None
    with LedgerReader(ledger) as reader:
        assert (
            Counter(end.reason for end in reader.all_ends() if end.reason != REFUSED)
            + Counter(f"refused {row.refusal}" for row in reader.all_requests() if row.refusal)
            == before
        )


async def test_own_12_who_leaves_before_the_body_is_whole_is_counted(tmp_path: Path) -> None:
    async with real_core(config(tmp_path), live=True, record=True) as core:
        host, port = core.url.removeprefix("http://").split(":")
        for path in DOORS:
            _, writer = await asyncio.open_connection(host, int(port))
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{{"
            writer.write(head.encode())
            await writer.drain()
            writer.close()
        assert await settled(core, len(DOORS)) == {"refused client_left": len(DOORS)}


async def test_own_12_what_no_engine_is_told_of_is_counted(tmp_path: Path) -> None:
    settings = with_fields(config(tmp_path), server=ServerConfig(api_key="right"))
    async with real_core(settings, record=True) as core:
        for path, body in DOORS.items():
            assert (await core.http.post(path, json={"model": MODEL, **body})).status_code == 401
        core.http.headers["authorization"] = "Bearer right"
        await core.engine.stop()
        core.app.state.doors.generation.flight.closing = False  # as where an engine ended by itself
        for path, body in DOORS.items():
            assert (await core.http.post(path, json={"model": MODEL, **body})).status_code == 503
            assert (await core.http.post(path, json={"model": MODEL, **body, "temperature": -1})).status_code == 400
        assert await counted(core) == {
            "refused invalid_api_key": len(DOORS),
            "refused engine_unavailable": len(DOORS),
            "refused invalid": len(DOORS),
        }


async def test_own_11_usage_metrics_and_ledger_say_the_same_of_an_answer_of_no_tokens(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = [
        {}, {"logprobs": 1}, {"logprobs": 1, "stream": True, "stream_options": {"include_usage": True}},
        {"prompt_logprobs": 0, "n": 2}, {"stream": True}, {"prompt": ["a", "bc"]},
    ]  # fmt: skip
    async with real_core(config(tmp_path), record=True) as core:
        count = 0
        for fields in asked:
            response = await core.complete(**{"prompt": "hello", "echo": True, "max_tokens": 0, **fields})
            assert response.status_code == 200
            usages = [line for line in response.text.splitlines() if '"usage":{' in line]
            assert all('"completion_tokens":0,' in line for line in usages)
            count += 2 if "n" in fields or isinstance(fields.get("prompt"), list) else 1
        await core.clean()
        assert await counted(core) == {"length": count}
        stats = core.engine.stats()
        assert stats.generation_tokens_total == 0
        assert stats.latencies[list(LATENCIES).index("time_to_first_token")].counts.count(0) == len(LATENCY_BOUNDS) + 1
        told = (await core.http.get(f"/v1/explain/{response.headers['x-ekiden-request-id']}-0")).json()
        assert told["status"] == "finished"
        path = core.engine.ledger_path
        assert path is not None
    with LedgerReader(path) as reader:
        ends = reader.all_ends()
        assert [(end.reason, end.output_tokens, end.first_token) for end in ends] == [("length", 0, None)] * count
        assert why(reader, reader.all_requests()[0], Question.TRUNCATED).words.startswith("It reached the 0 tokens")
        assert replay(reader.header, reader.everything()).difference is None
