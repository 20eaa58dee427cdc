"""Releases as the server's page lists them, and a person's yes to one."""

import msgspec
import pytest

from ekiden.release.desk import ReleaseDesk
from ekiden.release.plan import ReleaseError
from ekiden.release.state import Phase
from tests.unit.release.test_acts import SHORT, carried
from tests.unit.release.world import World, plan_with


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, rate=2.5)
    yield world
    world.close()


def test_one_that_waits_is_approved_by_a_named_person(world, tmp_path):
    store, state, _ = carried(world, tmp_path / "releases", plan_with(**SHORT))
    assert state.phase is Phase.PAUSED
    broken = tmp_path / "releases" / "broken-1"
    broken.mkdir()
    (broken / "journal.jsonl").write_text('{"no": "entry"}\n')
    desk, name = ReleaseDesk(tmp_path / "releases"), store.folder.name
    told = {each["name"]: each for each in desk.listed()}
    assert (told[name]["phase"], told[name]["readable"], told[name]["lacking"]) == ("Paused", True, 1)
    assert told["broken-1"]["readable"] is False
    assert told["broken-1"]["why"]
    assert msgspec.json.encode(list(told.values()))
    for who, release, text in (("", name, "by a name"), ("anna", "nothing", "no release 'nothing'")):
        with pytest.raises(ReleaseError, match=text):
            desk.check(release, who, despite_inconclusive=False)
    assert desk.check(name, "anna", despite_inconclusive=False) == "try"
    after = desk.approve(name, "anna", "looks right", despite_inconclusive=False)
    assert [(each["who"], each["why"]) for each in after["approvals"]] == [("anna", "looks right")]
    assert after["lacking"] == 0
    assert store.known().approvals[0].who == "anna"


def test_a_folder_that_is_not_there(tmp_path):
    assert ReleaseDesk(tmp_path / "nothing").listed() == []
