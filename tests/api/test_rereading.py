"""SIGHUP: limits and tenants are read again and become a change of the controls; a bad file changes nothing."""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.resources import files as files_in
from pathlib import Path

import httpx
import pytest

from ekiden.api.rereading import Rereading
from ekiden.build.config_sources import resolve
from ekiden.config import GuardConfig, controls_of
from ekiden.guard.hands import EngineHands
from ekiden.guard.runtime import Guard
from ekiden.guardrails.rules import Rules
from ekiden.state.controls import ControlChange, SetBy
from tests.api.real_core import RealCore, real_core
from tests.unit.guard.desk import FakeSense

SETTINGS = "[limits]\nmax_num_queued_reqs = {reqs}\nmax_body_mib = {mib}\ntenants_file = '{tenants}'\n"


class Files:
    """A configuration file with its tenants file, and a server that was started from them."""

    def __init__(self, folder: Path) -> None:
        self.config, self.tenants = folder / "ekiden.toml", folder / "tenants.toml"
        self.write(reqs=40, mib=8.0, weight=2.0)

    def write(self, *, reqs: int, mib: float, weight: float) -> None:
        self.tenants.write_text(f"[tenants.acme]\nweight = {weight}\n")
        self.config.write_text(SETTINGS.format(reqs=reqs, mib=mib, tenants=self.tenants))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
async def core(files: Files) -> AsyncIterator[RealCore]:
    async with real_core(resolve({}, {}, str(files.config)).config) as core:
        yield core


async def hang_up(core: RealCore, files: Files) -> None:
    """What the signal does, and wait for it."""
    state = core.app.state
    if not hasattr(state, "rereading"):  # a server has one, which remembers what it read
        state.rereading = Rereading(
            state.doors, state.keys, state.config, lambda: resolve({}, {}, str(files.config)).config
        )
    rereading: Rereading = state.rereading
    rereading.begin()
    assert rereading._task is not None
    await rereading._task


async def test_what_differs_is_changed_in_the_engine_and_at_the_door(core: RealCore, files: Files, caplog):
    files.write(reqs=7, mib=0.5, weight=5.0)
    with caplog.at_level(logging.INFO):
        await hang_up(core, files)
    state = core.engine.controls()
    assert state.controls.max_num_queued_reqs == 7
    assert state.controls.tenants["acme"].weight == 5.0
    (change,) = state.changes
    assert (change.set_by, change.who, set(change.values)) == (
        SetBy.CONFIGURATION, "SIGHUP", {"max_num_queued_reqs", "tenants"},
    )  # fmt: skip
    assert core.app.state.doors.limits.max_body_mib == 0.5
    assert "changed in the engine: max_num_queued_reqs, tenants" in caplog.text


async def test_the_guard_hears_of_it(core: RealCore, files: Files, tmp_path: Path, caplog):
    """Its rules are read again, and what it goes back to is what is configured now."""
    loop, rules = asyncio.get_running_loop(), tmp_path / "rules.toml"
    hands = EngineHands(core.engine, lambda: loop)
    was = core.app.state.config
    guard = Guard(Rules(rules=()), hands, FakeSense(), mode="act", configured=controls_of(was))
    config = replace(was, guard=GuardConfig(guard="act", guard_rules=str(rules)))
    core.app.state.rereading = Rereading(
        core.app.state.doors, core.app.state.keys, config, lambda: resolve({}, {}, str(files.config)).config, guard
    )
    files.write(reqs=7, mib=0.5, weight=5.0)
    with caplog.at_level(logging.INFO):
        await hang_up(core, files)
        assert f"the guard's rules stay as they were: guard_rules {rules}" in caplog.text
        rules.write_text(files_in("ekiden.data").joinpath("guard", "default.toml").read_text("utf-8"))
        await hang_up(core, files)
    assert "the guard's rules were read again: added" in caplog.text
    assert len(guard.rules.rules) >= 5
    assert guard.configured.max_num_queued_reqs == 7
    change = core.engine.controls().changes[-1]
    assert (change.who, change.why[:32]) == ("SIGHUP", "the rules were read again: added")


async def test_what_a_person_has_set_stays(core: RealCore, files: Files):
    await core.engine.set_controls(
        ControlChange(values={"max_num_queued_reqs": 3}, set_by=SetBy.PERSON, who="anna", why="a burst")
    )
    files.write(reqs=40, mib=8.0, weight=5.0)  # the limit is what it was in the file
    await hang_up(core, files)
    controls = core.engine.controls().controls
    assert (controls.max_num_queued_reqs, controls.tenants["acme"].weight) == (3, 5.0)
    await hang_up(core, files)
    assert core.engine.controls().controls.epoch == 2, "nothing was new"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("tenants", "[tenants.acme]\nweight = -1\n", "[tenants.acme] weight is -1; it must be a number over 0"),
        ("tenants", "[tenants", "tenants.toml"),
        ("config", "[limits]\nmax_num_queued_reqs = 0\n", "max_num_queued_reqs is 0; it must be at least 1"),
        ("config", "[limits]\nmax_queued = 5\n", "max_queued under [limits] is not a setting"),
    ],
)
async def test_a_bad_file_is_told_in_one_line_and_changes_nothing(
    core: RealCore, files: Files, caplog, name, text, told
):
    before = core.app.state.doors.limits
    getattr(files, name).write_text(text)
    with caplog.at_level(logging.INFO, logger="ekiden"):
        await hang_up(core, files)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().startswith("the limits stay as they were: ")
    assert told in record.getMessage()
    assert core.engine.controls().controls.epoch == 0
    assert core.app.state.doors.limits is before


PROGRAM = """
import logging, sys
from ekiden.api.server import serve
from ekiden.build.config_sources import resolve
from tests.api.scripted import QUICK, ScriptedEngine, make_app, make_tokenizer

async def nothing():
    pass

resolved = resolve({}, {}, sys.argv[1] or None)
logging.basicConfig(level="INFO", stream=sys.stdout)
app = make_app(ScriptedEngine(make_tokenizer()), resolved.config)
read = lambda: resolved.again().config
sys.exit(serve(lambda: app, QUICK, start=nothing, stop=nothing, read_config=read))
"""


@pytest.mark.parametrize("with_files", [True, False])
async def test_the_signal_does_not_end_the_server(files: Files, with_files):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-u", "-c", PROGRAM, str(files.config) if with_files else "", stdout=asyncio.subprocess.PIPE
    )
    stdout = process.stdout
    assert stdout is not None

    async def line_with(text: str) -> str:
        while text not in (line := (await stdout.readline()).decode()):
            assert line
        return line

    try:
        url = (await line_with("Ekiden is ready")).split()[4]
        if with_files:
            files.write(reqs=7, mib=8.0, weight=2.0)
        process.send_signal(signal.SIGHUP)
        await line_with("changed in the engine: " + ("max_num_queued_reqs" if with_files else "nothing"))
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            assert (await http.get("/v1/models")).status_code == 200
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0


async def test_a_second_signal_meanwhile_is_for_nothing(core: RealCore, files: Files):
    def slowly():
        time.sleep(0.1)
        return resolve({}, {}, str(files.config)).config

    rereading = Rereading(core.app.state.doors, core.app.state.keys, core.app.state.config, slowly)
    rereading.begin()
    task = rereading._task
    rereading.begin()
    assert rereading._task is task
    assert task is not None
    await task
