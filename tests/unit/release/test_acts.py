"""What people do: named, recorded in the server's ledger and in the journal, and only where it may be done."""

import json
import shutil
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from ekiden.cli.release import command
from ekiden.evaluation.load.target import Target
from ekiden.release import acts
from ekiden.release.analysis import AnalysisPhase
from ekiden.release.plan import ReleaseError, parse_release
from ekiden.release.server import HttpServer, OutOfReach
from ekiden.release.state import Event, Phase
from ekiden.release.store import newest, store_for, stores
from tests.unit.release.world import PLAN, World, plan_with

SHORT = {"pairs": "5", "block_seconds": "4", "drain_seconds": "1", "settle_seconds": "4"} | {
    "successCondition": '"result <= 0.3"',
    "failureCondition": '"result > 0.3"',
}


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, rate=2.5)
    yield world
    world.close()


def carried(world: World, folder, plan):
    """The release of a plan, as far as it goes by itself, and what was told of it."""
    told: list[str] = []
    store = acts.made(folder, plan, world)
    state = acts.carry_on(
        store, world, told=told.append, sleep=lambda s: world.advance(max(s, 0.05)), now=lambda: world.now
    )
    return store, state, told


def as_person(world: World, name: str) -> World:
    world.who = name
    return world


def test_two_persons_approve_and_one_promotes(world, tmp_path):
    plan = plan_with(**SHORT, why='"bursts"\napprovals.needed = 2')
    store, state, told = carried(world, tmp_path / "releases", plan)
    assert (state.phase, state.started_by) == (Phase.PAUSED, "anna")
    assert told[0].startswith("Progressing: try: pair 1.0")
    assert told[-1].startswith("Paused: waits for a person's approval")
    acts.approve(store, as_person(world, "bob"), "looks right")
    acts.approve(store, as_person(world, "bob"), "twice is once")
    with pytest.raises(ReleaseError, match="once 2 approved it"):
        acts.promote(store, as_person(world, "bob"))
    assert acts.approve(store, as_person(world, "carl"), "agreed").message.startswith("approved; `ekiden")
    assert acts.promote(store, world).phase is Phase.HEALTHY
    with world.ledger() as reader:
        acted = [(row.who, row.value) for row in reader.controls_named("release") if row.who in ("bob", "carl")]
    assert ("bob", "try: approved") in acted
    assert ("carl", "try: to be promoted") in acted
    state = acts.abort(store, as_person(world, "dora"), "slow nights")
    assert state.phase is Phase.DEGRADED
    with pytest.raises(ReleaseError, match="rolled back already"):
        acts.abort(store, world, "again")


def test_the_shadow_comes_first_and_can_end_it(world, tmp_path):
    shadow = '[shadow]\nseconds = 20\nfailureCondition = "result > 0.3"\n\n[objectives]'
    plan = parse_release(PLAN.replace("max_num_seqs = 16", "max_num_seqs = 1").replace("[objectives]", shadow))
    world.advance(10.0)
    _, state, _ = carried(world, tmp_path / "releases", plan)
    assert state.phase is Phase.DEGRADED
    assert "predicted slo_missed_share" in state.message
    assert state.block is None, "it served nobody"
    assert state.shadow["report"]["requests"] > 10
    assert state.shadow["report"]["error"] is not None


def test_an_inconclusive_analysis_needs_a_word_more(world, tmp_path):
    metrics = '"result > 0.9"\n[[metrics]]\nname = "ttft_p99"\nsuccessCondition = "result < 1.1"'
    plan = plan_with(**SHORT | {"failureCondition": metrics})
    store, state, _ = carried(world, tmp_path / "releases", plan)
    assert state.analysis_run.phase is AnalysisPhase.INCONCLUSIVE
    assert state.pause_conditions[0]["reason"] == "InconclusiveAnalysisRun"
    with pytest.raises(ReleaseError, match="--despite-inconclusive"):
        acts.approve(store, world, "all right")
    assert acts.approve(store, world, "all right", despite_inconclusive=True).approvals


def test_a_key_without_a_name_approves_nothing(world, tmp_path):
    store, _, _ = carried(world, tmp_path / "releases", plan_with(**SHORT))
    with pytest.raises(ReleaseError, match="named key"):
        acts.approve(store, as_person(world, ""), "all right")


def test_one_release_at_a_time(world, tmp_path):
    folder = tmp_path / "releases"
    store = acts.made(folder, plan_with(**SHORT), world)
    assert acts.made(folder, plan_with(**SHORT), world).folder == store.folder
    with pytest.raises(ReleaseError, match="carry it to its end"):
        acts.made(folder, plan_with(), world)
    with store.alone(), pytest.raises(ReleaseError, match="another process"):
        acts.carry_on(store, world, told=lambda message: None)
    acts.abort(store, world, "other plans")
    again = store_for(folder, plan_with(**SHORT))
    assert again.folder.name == store.folder.name + "-2"
    with pytest.raises(ReleaseError, match="in force already"):
        acts.made(folder, plan_with(max_num_seqs="8"), world)
    assert newest(folder).folder == store.folder
    assert len(stores(folder)) == 1


def test_a_journal_that_was_changed_is_not_believed(world, tmp_path):
    store = acts.made(tmp_path / "releases", plan_with(**SHORT), world)
    journal = store.folder / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b"anna", b"bert"))
    with pytest.raises(ReleaseError, match="was edited"):
        store.known()


def test_an_abort_counts_although_the_server_does_not_answer(world, tmp_path):
    store = acts.made(tmp_path / "releases", plan_with(**SHORT), world)
    world.reachable = False
    with pytest.raises(ReleaseError, match="the abort is noted"):
        acts.abort(store, world, "never mind")
    assert store.known().abort
    with pytest.raises(ReleaseError, match="being rolled back"):
        store.append(Event.PAIR_VOID, pair=0, message="")
    world.reachable = True
    state = acts.carry_on(store, world, told=lambda message: None, now=lambda: world.now)
    assert state.phase is Phase.DEGRADED


def test_status_on_the_command_line(world, tmp_path):
    store = acts.made(tmp_path / "releases", plan_with(**SHORT), world)
    found = CliRunner().invoke(command, ["status", "--release-dir", str(store.folder.parent), "--json"])
    told = json.loads(found.output)
    assert (found.exit_code, told["phase"], told["currentStepIndex"]) == (0, "Pending", 0)
    assert told["steps"][3] == "setWeight: 100"
    acts.abort(store, world, "never mind")
    found = CliRunner().invoke(command, ["status", "try", "--release-dir", str(store.folder.parent)])
    assert found.exit_code == 0 or found.return_value == 1
    assert "try: Degraded: RolloutAborted: never mind" in found.output
    shutil.rmtree(store.folder)
    with pytest.raises(ReleaseError, match="ekiden release start"):
        newest(store.folder.parent)


def http(handler, folder) -> HttpServer:
    server = HttpServer(Target.parse("http://127.0.0.1:1"), folder)
    server.close()
    server._client = httpx.Client(transport=httpx.MockTransport(handler))
    return server


def test_over_http(tmp_path):
    asked = []

    def handler(request):
        asked.append((request.method, request.url.path, json.loads(request.content or b"null")))
        told = {"value": 16, "set_by": "person", "who": "anna", "why": "x", "expires_in_seconds": 3.5}
        return httpx.Response(200, json={"epoch": 3, "draining": False, "controls": {"max_num_seqs": told}})

    server = http(handler, tmp_path)
    assert server.policy()["max_num_seqs"].expires_in_seconds == 3.5
    server.set({"max_num_seqs": 16}, why="w" * 600, seconds=4.0)
    server.set({"max_num_seqs": 16}, why="for good", seconds=None)
    assert asked[1] == (
        "POST",
        "/admin/policy",
        {"set": {"max_num_seqs": 16}, "reason": "w" * 500, "expires_in_seconds": 4.0},
    )
    assert "expires_in_seconds" not in asked[2][2]
    with pytest.raises(OutOfReach, match="cannot be read"):
        server.ledger()


def test_leave_is_asked_for_once_over_http(tmp_path):
    asked: list[tuple[str, Any]] = []
    approvals: list[dict[str, Any]] = [{"id": "a1", "kind": "release", "subject": "other", "state": "approved"}]

    def handler(request):
        body = json.loads(request.content or b"null")
        asked.append((request.url.path, body))
        if request.url.path == "/admin/policy":
            return httpx.Response(200, json={"controls": {}, "two_person": True})
        if body is None:
            return httpx.Response(200, json={"approvals": approvals})
        if body["action"] == "open":
            approvals.insert(0, {"id": "a2", "kind": "release", "subject": "try 1a", "state": "open", "lacking": 1})
        return httpx.Response(200, json=approvals[0])

    server = http(handler, tmp_path)
    allowed = {"max_num_seqs": [16, 8]}
    for _ in range(2):
        assert "ekiden approve a2" in server.leave("try 1a", allowed, why="bursts")
    opened = {"action": "open", "kind": "release", "subject": "try 1a", "reason": "bursts", "values": allowed}
    assert [body for _, body in asked if body] == [opened]
    approvals[0]["state"] = "approved"
    assert server.leave("try 1a", allowed, why="bursts") == ""
    server.end_leave("try 1a", why="rolled back")
    assert asked[-1] == ("/admin/approvals", {"action": "withdraw", "id": "a2", "reason": "rolled back"})
    approvals[0]["state"] = "refused"
    with pytest.raises(ReleaseError, match="is refused"):
        server.leave("try 1a", allowed, why="bursts")


@pytest.mark.parametrize(
    ("status", "error", "told"),
    [(503, OutOfReach, "503"), (404, ReleaseError, "scope admin"), (400, ReleaseError, "400")],
)
def test_refusals_over_http(tmp_path, status, error, told):
    with pytest.raises(error, match=told):
        http(lambda request: httpx.Response(status, text="no"), tmp_path).policy()


def test_nobody_there(tmp_path):
    server = HttpServer(Target.parse("http://127.0.0.1:1"), tmp_path)
    with pytest.raises(OutOfReach, match="is the server running"):
        server.policy()
    server.close()
