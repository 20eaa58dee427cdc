"""A short attack of each kind on the API over the real engine core; ``make fuzz`` is the long one on the real model."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from ekiden.config import CacheConfig, Config, LedgerConfig, SchedulerConfig
from ekiden.engine.interface import Health
from tests.api.real_core import BLOCK, RealCore, real_core
from tests.api.scripted import MODEL, VOCAB_SIZE
from tests.fuzz.attacks import ATTACKS
from tests.fuzz.target import Target

EXAMPLES = {"bodies": 75, "doors": 80, "leavers": 40, "http": 60, "schema": 6, "extremes": 100}


@dataclass
class Attacked:
    target: Target
    core: RealCore
    loop: asyncio.AbstractEventLoop

    def tasks(self, at_most: int | None = None) -> int:
        """Tasks on the server's loop, once it has seen to those that are ending; ``at_most`` of them are left."""
        return asyncio.run_coroutine_threadsafe(self._settled(at_most), self.loop).result(120)

    async def _settled(self, at_most: int | None) -> int:
        await self.core.clean()
        for _ in range(10):
            await asyncio.sleep(0.01)
        async with asyncio.timeout(60):
            while at_most is not None and len(asyncio.all_tasks()) > at_most:
                await asyncio.sleep(0.01)
        return len(asyncio.all_tasks())


@contextmanager
def serving(num_blocks: int) -> Iterator[Attacked]:
    """The server on a thread with its own event loop."""
    config = Config(
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=8 + 4 * BLOCK),
        cache=CacheConfig(block_size=BLOCK),
        ledger=LedgerConfig(ledger=False),
    )
    ready, done = threading.Event(), threading.Event()
    found: list[Attacked] = []

    async def main() -> None:
        async with real_core(config, num_blocks=num_blocks, live=True) as core:
            host, port = core.url.removeprefix("http://").split(":")
            target = Target(host, int(port), MODEL, VOCAB_SIZE)
            found.append(Attacked(target, core, asyncio.get_running_loop()))
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(60)
    try:
        yield found[0]
    finally:
        done.set()
        thread.join(60)


@pytest.fixture(scope="module")
def attacked() -> Iterator[Attacked]:
    with serving(num_blocks=80) as attacked:
        yield attacked


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(attacked: Attacked, name: str):
    attacked.target.check()
    before = attacked.tasks()
    answers = attacked.target.answers = {}
    ATTACKS[name](attacked.target, EXAMPLES[name])
    attacked.target.check()
    attacked.tasks(at_most=before)
    core = attacked.core
    assert not core.app.state.doors.generation.flight.exchanges
    assert core.engine.stats().kv_blocks_used == 0
    gc.collect()
    check_unharmed(core)
    if name in ("bodies", "doors", "schema", "extremes"):
        assert answers[200] > 20, answers  # it got past the door often enough to have been worth it
        assert answers[400] > 20, answers


def check_unharmed(core: RealCore) -> None:
    """The engine met no fault of its own, contained or not."""
    stats = core.engine.stats()
    assert core.engine.health is Health.OK
    assert stats.finished_total.get("error", 0) == 0, "the engine's work for a request failed"
    assert stats.refused_total.get("internal_error", 0) == 0
    assert stats.steps_run_again_total == stats.turns_unrecorded_total == 0


def test_extremes_in_a_pool_so_small_that_requests_push_one_another_out():
    with serving(num_blocks=18) as tiny:
        ATTACKS["extremes"](tiny.target, 60)
        tiny.target.check()
        check_unharmed(tiny.core)
        assert tiny.core.engine.stats().preemptions_total > 0
