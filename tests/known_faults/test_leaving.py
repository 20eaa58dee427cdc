"""Clients that leave: nothing is computed for them any longer, and nothing of theirs is kept."""

import asyncio
import time
from typing import Any

import pytest

from tests.api.real_core import BLOCK, CONTEXT, RealCore, real_core
from tests.api.test_admin import Gate
from tests.known_faults.conftest import TEXT, request_of, small, whole
from tests.known_faults.gates import opened


def start(core: RealCore, text: str, **fields: Any) -> "asyncio.Task[Any]":
    body = request_of(TEXT, text, ignore_eos=True, **fields)
    return asyncio.create_task(core.http.post(TEXT, json=body))


async def reached(core: RealCore, **wanted: int) -> None:
    """Wait until the engine's snapshot says so."""
    async with asyncio.timeout(60):
        while {name: getattr(core.engine.stats(), name) for name in wanted} != wanted:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("when", ["prefill", "decode"])
async def test_pb_12_generation_ends_when_its_client_leaves(when: str, stream: bool) -> None:
    gate = Gate()
    async with real_core(small(), before_step=gate, live=True) as core, opened(gate):
        prompt = "p" * (12 * BLOCK)  # several steps of prefill
        call = start(core, prompt, max_tokens=CONTEXT // 2, stream=stream)
        gate.permits.release(2 if when == "prefill" else 12)
        await reached(core, steps_total=2 if when == "prefill" else 12)
        assert core.engine.stats().kv_blocks_used > 0
        call.cancel()
        await asyncio.wait([call])
        gate.open.set()
        await core.clean()
        stats = core.engine.stats()
        assert stats.finished_total == {"abort": 1}
        assert stats.generation_tokens_total < CONTEXT // 4
        assert (await whole(core.http, TEXT, max_tokens=2))["usage"]["completion_tokens"] == 2


async def test_pb_12_a_client_that_waited_long_enough_leaves_a_connection_it_has_used() -> None:
    """How long that is, is no matter: it leaves once the engine is at work for it."""
    gate = Gate()
    async with real_core(small(), before_step=gate, live=True) as core, opened(gate):
        gate.permits.release(10)
        assert (await start(core, "first", max_tokens=2)).status_code == 200
        call = start(core, "hi", max_tokens=CONTEXT // 2)
        await reached(core, num_running=1)
        call.cancel()
        await asyncio.wait([call])
        gate.open.set()
        await core.clean()
        assert core.engine.stats().finished_total == {"length": 1, "abort": 1}
        assert core.engine.stats().generation_tokens_total < CONTEXT // 4


async def test_pb_13_those_who_leave_the_queue_are_never_computed() -> None:
    async with real_core(small(max_num_seqs=2), before_step=lambda step: time.sleep(0.05), live=True) as core:
        running = [start(core, f"long {index}", max_tokens=900) for index in range(2)]
        await reached(core, num_running=2)
        leaving = [start(core, "q" * 100, max_tokens=500) for _ in range(10)]
        last = start(core, "live", max_tokens=3)
        await reached(core, num_waiting=11)
        before = core.engine.stats().prompt_tokens_total
        for call in leaving:
            call.cancel()
        await reached(core, num_waiting=1)
        running[0].cancel()
        assert (await last).json()["usage"]["completion_tokens"] == 3
        assert core.engine.stats().prompt_tokens_total - before == len("live")
        running[1].cancel()
        await asyncio.wait([*leaving, *running])
        await core.clean()
