"""A process that is started before its work is known."""

from dataclasses import replace

import pytest

from ekiden.build.early import spawn_early
from ekiden.config import ConfigError, EngineConfig
from ekiden.engine.child import engine_main
from ekiden.engine.interface import EngineDied, Health
from ekiden.engine.process import EngineClient
from ekiden.engine.spawn import spawn
from tests.unit.engine.fake_parts import make_config, make_fake_engine


@pytest.mark.parametrize("device", ["CPU", "NONE"])
async def test_it_becomes_the_first_engine(device: str) -> None:
    """Also where what it would import early cannot be had: the load would tell."""
    spawned = spawn_early(replace(make_config(), engine=EngineConfig(backend="fake", device=device)))
    client = EngineClient(make_fake_engine, make_config(), spawned=spawned)
    await client.start()
    try:
        assert client.pid == spawned.process.pid
        assert client.health is Health.OK
    finally:
        await client.stop()


def test_a_backend_that_there_is_not_is_told_before_any_process_starts() -> None:
    with pytest.raises(ConfigError, match="backend is 'abacus'; it must be one of openvino, fake"):
        spawn_early(replace(make_config(), engine=EngineConfig(backend="abacus")))


def test_it_ends_by_itself_when_there_is_nothing_to_load() -> None:
    spawned = spawn(engine_main)
    spawned.connection.close()
    spawned.process.join(60)
    assert spawned.process.exitcode == 0


async def test_one_that_died_before_its_work_is_told_as_a_failed_start() -> None:
    spawned = spawn(engine_main)
    spawned.process.kill()
    spawned.process.join()
    client = EngineClient(make_fake_engine, make_config(), spawned=spawned)
    with pytest.raises(EngineDied, match="ended unexpectedly"):
        await client.start()
    await client.stop()
