"""A process that is started before its work is known."""

import pytest

from ekiden.engine.interface import EngineDied, Health
from ekiden.engine.process import EngineClient
from ekiden.engine.spawn import spawn_engine
from tests.unit.engine.fake_parts import make_config, make_fake_parts


async def test_it_becomes_the_first_engine() -> None:
    spawned = spawn_engine(needed=["tests.unit.engine.fake_parts", "ekiden.no_such_module"])
    client = EngineClient(make_fake_parts, make_config(), spawned=spawned)
    await client.start()
    try:
        assert client.pid == spawned.process.pid
        assert client.health is Health.OK
    finally:
        await client.stop()


def test_it_ends_by_itself_when_there_is_nothing_to_load() -> None:
    spawned = spawn_engine()
    spawned.connection.close()
    spawned.process.join(30.0)
    assert spawned.process.exitcode == 0


async def test_one_that_died_before_its_work_is_told_as_a_failed_start() -> None:
    spawned = spawn_engine()
    spawned.process.kill()
    spawned.process.join()
    client = EngineClient(make_fake_parts, make_config(), spawned=spawned)
    with pytest.raises(EngineDied, match="ended unexpectedly"):
        await client.start()
    await client.stop()
