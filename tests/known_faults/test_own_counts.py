"""Every request is counted once, under how it ended: on each door, streamed and not."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from ekiden.config import CacheConfig, Config, LedgerConfig, SchedulerConfig
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
        self.body = {"model": MODEL, **DOORS[path], "stream": stream}

    def send(self, **fields: Any) -> "asyncio.Task[httpx.Response]":
        return asyncio.create_task(self.core.http.post(self.path, json=self.body | fields))

    async def until(self, running: int, waiting: int) -> None:
        async with asyncio.timeout(20):
            while (stats := self.core.engine.stats()).num_running != running or stats.num_waiting != waiting:
                self.gate.permits.release()
                await asyncio.sleep(0.005)

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


async def test_own_12_the_four_ways_to_end_add_up(tmp_path: Path) -> None:
    gate = Gate()
    async with real_core(config(tmp_path), before_step=gate, live=True, record=True) as core:
        before: Counter[str] = Counter()
        try:
            for path in DOORS:
                for stream in (False, True):
                    await Crowd(core, gate, path, stream=stream).run()
                    now = await counted(core)
                    added = now - before
                    before = now
                    whole = added["stop"] + added["length"]
                    assert (added["abort"], added["refused invalid"], whole) == (2 * EACH, EACH, EACH), (path, stream)
                    assert added.total() == 4 * EACH
        finally:
            gate.open.set()
