"""Tenants' limits and deadlines from the HTTP header to the engine core and back."""

import asyncio
from pathlib import Path

import pytest

from ekiden.config import CacheConfig, Config, LedgerConfig, LimitsConfig, SchedulerConfig, ServerConfig
from ekiden.guardrails.limits import load_tenants
from tests.api.conftest import assert_error, events
from tests.api.real_core import BLOCK, StandingClock, real_core
from tests.api.test_admin import Gate

TENANTS = """
[tenants.slow]
tokens_per_second = 10
burst_tokens = 30

[tenants.narrow]
max_num_queued_reqs = 1
"""


def config(tmp_path: Path, **limits: object) -> Config:
    path = tmp_path / "tenants.toml"
    path.write_text(TENANTS)
    return Config(
        scheduler=SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=1 + 2 * BLOCK),
        cache=CacheConfig(block_size=BLOCK),
        limits=LimitsConfig(**limits),  # type: ignore[arg-type]
        tenants=load_tenants(str(path)),
        server=ServerConfig(tenant_header="x-tenant"),
        ledger=LedgerConfig(ledger=False),
    )


async def test_a_tenant_over_its_rate_is_told_when_to_come_back(tmp_path: Path):
    async with real_core(config(tmp_path), clock=StandingClock()) as core:
        core.http.headers["x-tenant"] = "slow"
        assert (await core.complete("x" * 10, max_tokens=10)).status_code == 200
        response = await core.complete("x" * 10, max_tokens=10)
        assert "'slow'" in assert_error(response, 429, code="tenant_rate")
        # 20 of 30 tokens were taken, and the ten that lack come in at ten a second.
        assert int(response.headers["retry-after-ms"]) == 1000
        assert response.headers["retry-after"] == "1"
        core.http.headers["x-tenant"] = "another"
        assert (await core.complete("x" * 10, max_tokens=10)).status_code == 200


async def test_queues_of_one_tenant_and_of_all(tmp_path: Path):
    gate = Gate()
    async with real_core(config(tmp_path, max_num_queued_reqs=2), before_step=gate) as core:
        try:
            core.http.headers["x-tenant"] = "narrow"
            running = asyncio.create_task(core.complete("a", max_tokens=1))
            while not core.runner.steps:
                await asyncio.sleep(0.001)
            # The step of the first is held; all the others are there before the next one begins.
            others = [asyncio.create_task(core.complete("b", max_tokens=1)) for _ in range(5)]
            while len(core.app.state.doors.generation.flight.calls) < 6:
                await asyncio.sleep(0.001)
        finally:
            gate.open.set()
        assert (await running).status_code == 200
        answers = [await call for call in others]
        refused = [answer for answer in answers if answer.status_code != 200]
        assert len(refused) == 4
        for answer in refused:
            assert_error(answer, 429, code="tenant_queue_full")
            assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_deadline_that_passes_in_the_queue(tmp_path: Path, stream: bool):
    gate, clock = Gate(), StandingClock()
    async with real_core(config(tmp_path), before_step=gate, clock=clock) as core:
        try:
            running = asyncio.create_task(core.complete("a", max_tokens=3, ignore_eos=True))
            while not core.app.state.doors.generation.flight.calls:
                await asyncio.sleep(0)
            body = {"model": "toy/model", "prompt": "b", "stream": stream}
            headers = {"x-request-deadline-ms": "1000000"}
            late = asyncio.create_task(core.http.post("/v1/completions", json=body, headers=headers))
            while len(core.app.state.doors.generation.flight.calls) < 2:
                await asyncio.sleep(0)
            clock.now += 2000  # its deadline passes in the queue
        finally:
            gate.open.set()
        assert_error(await late, 408, code="deadline")
        assert (await running).status_code == 200
        assert core.engine.stats().finished_total["deadline"] == 1
        await core.clean()


async def test_a_deadline_that_passes_while_tokens_flow(tmp_path: Path):
    """The stream has begun, so the error comes in it, and ``[DONE]`` is last."""
    gate, clock = Gate(), StandingClock()
    async with real_core(config(tmp_path), before_step=gate, live=True, clock=clock) as core:
        try:
            body = {"model": "toy/model", "prompt": "b", "stream": True, "max_tokens": 50, "ignore_eos": True}
            headers = {"x-request-deadline-ms": "1000000"}
            gate.permits.release(3)
            async with core.http.stream("POST", "/v1/completions", json=body, headers=headers) as response:
                assert response.status_code == 200
                clock.now += 2000  # the deadline passes
                gate.open.set()
                text = (await response.aread()).decode()
        finally:
            gate.open.set()
        *tokens, error = events(text)
        assert tokens
        assert error["error"]["code"] == "deadline"
        await core.clean()
