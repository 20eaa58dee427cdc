"""A release at the server's own page: the acts of ``ekiden release``, in the name of who acts, in the ledger."""

import asyncio
from pathlib import Path

import pytest

from ekiden.config import Config, LedgerConfig
from ekiden.evidence.reader import LedgerReader
from ekiden.guard.hands import EngineHands
from ekiden.guard.people import People
from ekiden.guard.runtime import Guard
from ekiden.guardrails.rules import Rules
from ekiden.release.desk import ReleaseDesk
from ekiden.release.plan import ReleaseError
from tests.api.real_core import RealCore, real_core
from tests.unit.guard.desk import CONFIGURED, FakeSense
from tests.unit.release.world import at_its_horizon


def desk_of(core: RealCore, folder: Path) -> ReleaseDesk:
    return ReleaseDesk(folder, core.engine, asyncio.get_running_loop())


async def test_approve_promote_and_abort(tmp_path: Path):
    name = at_its_horizon(tmp_path / "releases").folder.name
    config = Config(ledger=LedgerConfig(ledger=True, ledger_dir=str(tmp_path / "ledger")))
    async with real_core(config, record=True) as core:
        desk = desk_of(core, tmp_path / "releases")
        (told,) = await asyncio.to_thread(desk.listed)
        assert (told["phase"], told["pairs"], told["plan"]["name"]) == ("Paused", 0, "try")
        with pytest.raises(ReleaseError, match="no release 'try'"):
            await asyncio.to_thread(desk.act, "abort", "try", "bob", "now")
        with pytest.raises(ReleaseError, match="once 1 approved it"):
            await asyncio.to_thread(desk.act, "promote", name, "bob", "now")
        told = await asyncio.to_thread(desk.act, "approve", name, "bob", "looks right")
        assert [(each["who"], each["why"]) for each in told["approvals"]] == [("bob", "looks right")]
        assert (await asyncio.to_thread(desk.act, "promote", name, "bob", "now"))["phase"] == "Healthy"
        assert core.engine.controls().controls.max_num_seqs == 16
        assert (await asyncio.to_thread(desk.act, "abort", name, "carl", "slow"))["phase"] == "Degraded"
        assert core.engine.controls().controls.max_num_seqs == 8
        path = core.engine.ledger_path
    assert path is not None
    with LedgerReader(path) as reader:
        acts = [(row.who, row.value) for row in reader.controls_named("release")]
    assert ("bob", "try: approved") in acts
    assert ("carl", "try: aborted") in acts


async def test_two_persons_let_it_be_promoted(tmp_path: Path):
    name = at_its_horizon(tmp_path / "releases").folder.name
    async with real_core() as core:
        loop = asyncio.get_running_loop()
        hands, sense = EngineHands(core.engine, lambda: loop), FakeSense()
        guard = Guard(Rules(rules=()), hands, sense, mode="off", configured=CONFIGURED, two_person=True)
        people = People(guard)
        desk = ReleaseDesk(tmp_path / "releases", core.engine, loop, people)
        await asyncio.to_thread(desk.act, "approve", name, "bob", "looks right")
        with pytest.raises(ReleaseError, match="another person must let it set that: `ekiden approve a1"):
            await asyncio.to_thread(desk.act, "promote", name, "bob", "now")
        await asyncio.to_thread(people.approve, "a1", "carl", "right")
        assert (await asyncio.to_thread(desk.act, "promote", name, "bob", "now"))["phase"] == "Healthy"
        assert core.engine.controls().controls.max_num_seqs == 16
        assert (await asyncio.to_thread(desk.act, "abort", name, "dora", "slow"))["phase"] == "Degraded"
        assert people.approvals()[0]["state"] == "withdrawn"
        assert core.engine.controls().controls.max_num_seqs == 8


async def test_a_journal_that_was_changed_is_told_of(tmp_path: Path):
    store = at_its_horizon(tmp_path / "releases")
    journal = store.folder / "journal.jsonl"
    journal.write_text(journal.read_text().replace("anna", "nobody"))
    async with real_core() as core:
        (told,) = await asyncio.to_thread(desk_of(core, tmp_path / "releases").listed)
    assert "journal.jsonl" in told["why"]
