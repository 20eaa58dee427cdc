"""A promotion outlives the server: in force again at its next start, or told of plainly; and an abort ends that."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ekiden.cli.serve import _promotions
from ekiden.config import CacheConfig, Config, LedgerConfig, SchedulerConfig, ServerConfig, controls_of
from ekiden.evaluation.load.target import Target
from ekiden.evidence.reader import LedgerReader
from ekiden.guard.hands import EngineHands
from ekiden.guard.runtime import Guard
from ekiden.guardrails.rules import Rules
from ekiden.release import acts
from ekiden.release.desk import ReleaseDesk
from ekiden.release.plan import ReleaseError
from ekiden.release.promotions import promotions, stand
from ekiden.release.server import HttpServer
from ekiden.release.state import Event, Place
from ekiden.release.store import ReleaseStore, create, store_for
from tests.api.real_core import RealCore, real_core
from tests.unit.guard.desk import FakeSense
from tests.unit.release.world import PLACE, at_its_horizon, pass_the_horizon, plan_with


def config_of(folder: Path, **settings: Any) -> Config:
    scheduler = SchedulerConfig(**{"max_num_seqs": 8, **settings})
    ledger = LedgerConfig(ledger_dir=str(folder / "ledger"))
    return Config(scheduler=scheduler, cache=CacheConfig(block_size=16), ledger=ledger)


@asynccontextmanager
async def started(folder: Path, config: Config | None = None) -> AsyncIterator[tuple[RealCore, list[str]]]:
    """A server as it is after a start."""
    async with real_core(config or config_of(folder), record=True) as core:
        yield core, await stand(core.engine, folder, PLACE)


def slots(core: RealCore) -> int:
    return core.engine.controls().controls.max_num_seqs


async def act(core: RealCore, store: ReleaseStore, action: str, who: str, place: Place = PLACE) -> dict[str, Any]:
    desk = ReleaseDesk(store.folder.parent, core.engine, asyncio.get_running_loop(), place=place)
    return await asyncio.to_thread(desk.act, action, store.folder.name, who, "looks right")


@pytest.fixture
async def promoted(tmp_path: Path) -> ReleaseStore:
    store = at_its_horizon(tmp_path)
    async with real_core(config_of(tmp_path)) as core:
        await act(core, store, "approve", "bob")
        await act(core, store, "promote", "anna")
        assert slots(core) == 16
    return store


async def test_it_is_in_force_again_until_it_is_aborted(promoted: ReleaseStore, tmp_path: Path):
    digest = promoted.last_digest()
    async with started(tmp_path) as (core, faults):
        assert (slots(core), faults) == (16, [])
        path = core.engine.ledger_path
    async with started(tmp_path) as (core, _):
        told = await act(core, promoted, "abort", "carl")
        assert (told["phase"], slots(core)) == ("Degraded", 8)
    async with started(tmp_path) as (core, faults):
        assert (slots(core), faults) == (8, [])
    assert path is not None
    with LedgerReader(path) as reader:
        row = reader.controls_named("max_num_seqs")[-1]
    assert (row.old, row.value, row.set_by, row.who) == ("8", "16", "software_rule", "release:try")
    for part in (
        f"release {promoted.known().subject}: in force again",
        "promoted by anna",
        "bob (looks right)",
        digest,
    ):
        assert part in row.why


async def test_an_abort_counts_while_the_server_is_down(promoted: ReleaseStore, tmp_path: Path):
    nobody = HttpServer(Target.parse("http://127.0.0.1:1"), tmp_path)
    with pytest.raises(ReleaseError, match="A server that starts does not put it in force again"):
        acts.abort(promoted, nobody, "slow nights")
    nobody.close()
    async with started(tmp_path) as (core, faults):
        assert (slots(core), faults) == (8, [])


async def test_other_servers_leave_it_alone(promoted: ReleaseStore, tmp_path: Path):
    for other in (
        Place(address="127.0.0.1:8001", model=PLACE.model),
        Place(address=PLACE.address, model="other/model"),
    ):
        assert promotions(tmp_path, other) == ([], [])
    nowhere = Place(address=None, model=PLACE.model)
    assert not nowhere.is_same(nowhere), "a port that is chosen at each start names no server"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"max_num_seqs": 32}, "max_num_seqs is 32 now, and 16 was compared with 8. Configure what you want"),
        ({"max_num_batched_tokens": 40}, "max_num_batched_tokens is 40; with max_num_seqs 16"),
    ],
)
async def test_it_is_told_of_where_it_no_longer_fits(promoted: ReleaseStore, tmp_path: Path, settings, told):
    config = config_of(tmp_path, **settings)
    async with started(tmp_path, config) as (core, faults):
        assert core.engine.controls().controls == controls_of(config)
        assert len(faults) == 1
        assert faults[0].startswith("the release try is promoted and does not fit the configuration")
        assert told in faults[0]
        assert (await act(core, promoted, "abort", "carl"))["phase"] == "Degraded"
        assert slots(core) == config.scheduler.max_num_seqs, "there was nothing of it to take back"


async def test_what_is_configured_meanwhile_is_nothing_to_change(promoted: ReleaseStore, tmp_path: Path):
    async with started(tmp_path, config_of(tmp_path, max_num_seqs=16)) as (core, faults):
        assert (core.engine.controls().changes, faults) == ([], [])


async def test_the_newest_of_two_stands(promoted: ReleaseStore, tmp_path: Path):
    plan = msgspec.structs.replace(plan_with(max_num_seqs="24"), name="more")
    second = store_for(tmp_path, plan)
    create(second, plan, who="anna", before={"max_num_seqs": 16})
    pass_the_horizon(second)
    second.append(Event.APPROVED, who="bob", why="fine")
    second.append(Event.PROMOTION_BEGUN, who="anna", server=PLACE)
    async with started(tmp_path) as (core, faults):
        assert slots(core) == 16
        assert "the release more was being promoted when that was interrupted" in faults[0]
    second.append(Event.PROMOTED, who="anna")
    async with started(tmp_path) as (core, faults):
        assert (slots(core), faults) == (24, [])
        await act(core, promoted, "abort", "carl")
        assert slots(core) == 24, "what another release has set since stays"


async def test_a_start_tells_of_what_is_not_in_force(promoted: ReleaseStore, tmp_path: Path):
    journal = promoted.folder / "journal.jsonl"
    whole = journal.read_bytes()
    async with real_core(config_of(tmp_path), record=True) as core:
        loop = asyncio.get_running_loop()
        hands = EngineHands(core.engine, lambda: loop)
        guard = Guard(Rules(rules=()), hands, FakeSense(), mode="off", configured=controls_of(config_of(tmp_path)))

        async def start(**settings: Any) -> str:
            await _promotions(ServerConfig(release_dir=str(tmp_path), **settings), core.engine, guard)
            return guard.kept.decisions[-1].why if guard.kept.decisions else ""

        assert await start(port=0) == ""
        assert await start(promotions=False) == (
            "the release try is promoted and not in force: the server was started without promotions"
        )
        journal.write_bytes(whole.replace(b"bob", b"rob"))
        assert "cannot be read, and nothing of it is in force" in await start()
        assert slots(core) == 8
        journal.write_bytes(whole)
        await start()
        assert (slots(core), len(guard.kept.decisions), guard.kept.unrecorded) == (16, 2, [])
        path = core.engine.ledger_path
    assert path is not None
    with LedgerReader(path) as reader:
        told = [row.why for row in reader.controls_named("guard")]
    assert any(why.startswith("a promoted release is not in force: the release try") for why in told)
