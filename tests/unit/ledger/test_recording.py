"""The engines record: in their own process, on a thread, and offline; who cannot record says so at the start."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from ekiden.build.engines import build_engine, build_llm
from ekiden.build.recording import LedgerError, recorded_core
from ekiden.config import Config, ConfigError, LedgerConfig
from ekiden.engine.async_engine import AsyncEngine
from ekiden.engine.process import EngineClient
from ekiden.evidence.causes import Cause
from ekiden.evidence.decision_replay import replay
from ekiden.evidence.explain import explain
from ekiden.evidence.reader import LedgerReader
from ekiden.ledger.retention import ledger_folder, runs_in
from ekiden.models.errors import ModelError
from ekiden.state.controls import ControlChange, SetBy
from ekiden.state.request import FinishReason
from ekiden.state.sampling_params import SamplingParams
from tests.unit.engine.fake_parts import make_config, make_fake_engine, make_fake_parts, make_request


def recording_config(folder: Path, **settings: object) -> Config:
    return replace(make_config(), ledger=LedgerConfig(ledger_dir=str(folder), **settings))  # type: ignore[arg-type]


async def test_the_servers_engine_records_in_its_own_process(tmp_path: Path) -> None:
    client = EngineClient(make_fake_engine, recording_config(tmp_path))
    await client.start()
    try:
        held = client.generate(make_request("held", max_tokens=3000))
        await held.__anext__()
        await client.pause("held", "alice")
        other = [update async for update in client.generate(make_request("other", max_tokens=5))]
        assert other[-1].finish is not None
        assert other[-1].finish.reason is FinishReason.LENGTH
        await client.resume("held", "alice")
        async for _ in held:
            pass
    finally:
        await client.stop()
    (path,) = runs_in(tmp_path)
    with LedgerReader(path) as reader:
        told = explain(reader, reader.requests_named("held")[0])
        paused = next(cause for cause in told.causes if cause.cause == Cause.OPERATOR_PAUSE)
        assert paused.control is not None
        assert paused.control["who"] == "alice"
        assert told.output_tokens == 3000
        assert replay(reader.header, reader.everything()).difference is None


async def test_an_engine_on_a_thread_records_when_asked(tmp_path: Path) -> None:
    config = recording_config(tmp_path)
    async with AsyncEngine(build_engine(make_fake_parts(config), config, record=True)) as engine:
        requests = [make_request(f"r{number}", max_tokens=20) for number in range(12)]
        await asyncio.gather(*(collect(engine, request) for request in requests))
    async with AsyncEngine(build_engine(make_fake_parts(config), config)) as engine:
        await collect(engine, make_request("unrecorded", max_tokens=2))
    (path,) = runs_in(tmp_path)
    with LedgerReader(path) as reader:
        assert len(reader.all_ends()) == 12
        assert replay(reader.header, reader.everything()).difference is None


async def test_a_drain_is_recorded_with_what_made_it(tmp_path: Path) -> None:
    config = recording_config(tmp_path)
    async with AsyncEngine(build_engine(make_fake_parts(config), config, record=True)) as engine:
        for draining in (True, False):
            change = ControlChange(values={"draining": draining}, set_by=SetBy.PERSON, who="anna", why="upgrade")
            await engine.set_controls(change)
        running = engine.generate(make_request("running", max_tokens=900_000))
        await anext(running)
        await engine.stop(drain_seconds=0.05)
    (path,) = runs_in(tmp_path)
    with LedgerReader(path) as reader:
        told = [
            (row.old, row.value, row.set_by, row.who, row.why)
            for row in reader.all_controls()
            if row.name == "draining"
        ]
        assert replay(reader.header, reader.everything()).difference is None
    assert told == [
        ("off", "on", "person", "anna", "upgrade"),
        ("on", "off", "person", "anna", "upgrade"),
        ("off", "on", "software_rule", "shutdown", ""),
    ]


async def collect(engine: AsyncEngine, request: object) -> None:
    async for _ in engine.generate(request):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("batching", ["continuous", "window"])
def test_offline_batches_record_and_sleep_while_a_window_fills(tmp_path: Path, batching: str) -> None:
    config = recording_config(tmp_path)
    config = replace(config, scheduler=replace(config.scheduler, batching=batching))
    with build_llm(make_fake_parts(config), config, record=True) as llm:
        llm.generate([[1, 2, 3], [4, 5, 6]], SamplingParams(temperature=0.0, max_tokens=5))
    (path,) = runs_in(tmp_path)
    with LedgerReader(path) as reader:
        assert len(reader.all_ends()) == 2
        assert reader.bounds()[1] < 40, "the engine spun while it waited"
        assert replay(reader.header, reader.everything()).difference is None


async def test_a_folder_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    config = recording_config(blocked / "ledger")
    with pytest.raises(LedgerError, match="choose another folder with --ledger-dir, or --no-ledger"):
        recorded_core(make_fake_parts(config), config)
    client = EngineClient(make_fake_engine, config)
    with pytest.raises(ModelError, match="cannot record to"):
        await client.start()
    await client.stop()


async def test_without_a_ledger_nothing_is_written(tmp_path: Path) -> None:
    client = EngineClient(make_fake_engine, recording_config(tmp_path, ledger=False))
    await client.start()
    async for _ in client.generate(make_request("r", max_tokens=3)):
        pass
    await client.stop()
    assert runs_in(tmp_path) == []


def test_the_folder_follows_the_settings_and_the_state_home(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ledger_folder(LedgerConfig(ledger_dir="/somewhere")) == Path("/somewhere")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert ledger_folder(LedgerConfig()) == Path("/state/ekiden/ledger")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert ledger_folder(LedgerConfig()) == Path.home() / ".local/state/ekiden/ledger"


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="ledger_max_age_days is 0"):
        LedgerConfig(ledger_max_age_days=0)
    with pytest.raises(ConfigError, match="ledger_max_size is 'much'"):
        LedgerConfig(ledger_max_size="much")
