"""``/admin/guard`` and ``/admin/approvals`` over the real engine core, and the commands that ask them."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ekiden.api.keys import new_key
from ekiden.cli.main import main
from ekiden.config import Config, LedgerConfig, ServerConfig, controls_of
from ekiden.engine.async_engine import AsyncEngine
from ekiden.evidence.reader import LedgerReader
from ekiden.guard.hands import EngineHands
from ekiden.guard.runtime import Guard
from ekiden.guard.senses import LedgerSense
from ekiden.guardrails.rules import Rules
from ekiden.ledger.retention import runs_in
from ekiden.state.controls import ControlChange, SetBy
from tests.api.conftest import Memory, assert_error
from tests.api.real_core import RealCore, real_core
from tests.unit.guard.desk import Clock, FakeChannel, FakeSense, rule


class Desk:
    """Two persons with keys, a user without, the guard and the server."""

    def __init__(self, core: RealCore, guard: Guard, sense: FakeSense, keys: dict[str, str], clock: Clock) -> None:
        self.core, self.guard, self.sense, self.keys = core, guard, sense, keys
        self.clock = clock

    def headers(self, who: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[who]}"}

    async def get(self, path: str, who: str = "anna") -> Any:
        return (await self.core.http.get(path, headers=self.headers(who))).json()

    async def post(self, path: str, who: str = "anna", **body: Any) -> httpx.Response:
        return await self.core.http.post(path, json=body, headers=self.headers(who))

    async def act(self, action: str, who: str = "anna", **body: Any) -> httpx.Response:
        return await self.post("/admin/guard", who, action=action, **{"reason": "because", **body})

    async def looks(self, count: int, **signals: float) -> None:
        self.sense.values = dict(signals) or self.sense.values
        for _ in range(count):
            self.clock.now += 1.0
            await asyncio.to_thread(self.guard.look)
            assert not self.guard.failure, self.guard.failure

    async def control(self, name: str) -> Any:
        return (await self.get("/admin/policy"))["controls"][name]


@asynccontextmanager
async def desk_of(tmp_path: Path, *, two_person: bool = False, live: bool = False) -> AsyncIterator[Desk]:
    keys, path = {}, tmp_path / "keys.toml"
    with path.open("w") as file:
        for name, scopes in (("anna", '["admin"]'), ("bert", '["admin"]'), ("user", '["inference"]')):
            keys[name], digest = new_key()
            file.write(f'[[keys]]\nname = "{name}"\nhash = "{digest}"\nscopes = {scopes}\n')
    config = Config(server=ServerConfig(api_keys_file=str(path)), ledger=LedgerConfig(ledger_dir=str(tmp_path / "l")))
    sense, made, clock = FakeSense(), list[Guard](), Clock()
    loop = asyncio.get_running_loop()

    def make_guard(engine: AsyncEngine) -> Guard:
        rules = Rules(rules=(rule("slow", "shrink_batch", "require_acknowledgement"),))
        made.append(
            Guard(
                rules,
                EngineHands(engine, lambda: loop),
                sense,
                mode="act",
                configured=controls_of(config),
                channels=[FakeChannel()],
                two_person=two_person,
                clock=clock.unix,
                server="127.0.0.1:8000",
            )
        )
        return made[0]

    async with real_core(config, record=True, live=live, make_guard=make_guard) as core:
        desk = Desk(core, made[0], sense, keys, clock)
        yield desk


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk_of(tmp_path) as desk:
        yield desk


async def test_absent_without_a_guard_or_the_scope(memory: Memory, desk: Desk):
    for path in ("/admin/guard", "/admin/approvals"):
        assert_error(await memory.http.get(path), 404, code="not_found")
        response = await desk.core.http.get(path, headers=desk.headers("user"))
        assert_error(response, 403, code="insufficient_scope")


async def test_what_the_guard_does_is_seen_everywhere(desk: Desk, tmp_path: Path):
    await desk.looks(9, itl_p99=0.5)
    told = await desk.control("max_num_seqs")
    assert (told["value"], told["set_by"], told["who"]) == (32, "software_rule", "guard:slow")
    assert told["why"].startswith("raised from rung 0 to 1 (shrink_batch): itl_p99 is 0.5 s")
    assert 20 < told["expires_in_seconds"] <= 30
    assert (await desk.control("guard"))["value"] == "slow: shrink_batch, require_acknowledgement, waits for a person"
    view = await desk.get("/admin/guard")
    (seen,) = view["rules"]
    assert (seen["rung"], seen["value"], seen["threshold"], seen["owner"]) == (2, 0.5, 0.2, "on-call")
    assert [each["what"] for each in view["decisions"]][-1] == "raised from rung 0 to 1 (shrink_batch)"
    assert view["unrecorded"] == 0
    text = (await desk.core.http.get("/metrics", headers=desk.headers("anna"))).text
    assert "ekiden:guard_rungs{" in text
    assert 'ekiden:guard_steps_total{engine="0",model_name="toy/model"} 2.0' in text
    assert (await desk.core.http.get("/ready")).json() == {"status": "ok", "guard": "ok"}
    await desk.core.engine.stop()
    (path,) = runs_in(tmp_path / "l")
    with LedgerReader(path) as reader:
        rows = [row for row in reader.all_controls() if row.who == "guard:slow"]
    assert next((row.name, row.old, row.value) for row in rows if row.name == "max_num_seqs") == (
        "max_num_seqs",
        "64",
        "32",
    )
    assert all(row.set_by == "software_rule" and row.expires is not None for row in rows)


async def test_a_guard_that_fails_says_so_and_the_server_is_healthy(desk: Desk):
    desk.sense.faults = [ZeroDivisionError("a fault of ours")]
    await asyncio.to_thread(desk.guard.look)
    assert (await desk.core.http.get("/ready")).json() == {"status": "ok", "guard": "failing"}
    health = await desk.core.http.get("/health")
    assert (health.status_code, health.content, health.headers["x-ekiden-guard"]) == (200, b"", "failing")
    assert "ZeroDivisionError: a fault of ours" in (await desk.get("/admin/guard"))["failure"]


async def test_a_stalled_engine_is_seen_in_its_own_ledger_and_paged_for(tmp_path: Path):
    """The whole way: the engine's turns, the ledger, the signal, the rule, the page, and down again."""
    gate, standing, channel, made = threading.Event(), threading.Event(), FakeChannel(), list[Guard]()
    gate.set()
    loop = asyncio.get_running_loop()
    config = Config(ledger=LedgerConfig(ledger_dir=str(tmp_path)))
    stall = rule(
        "stall", "page", signal="step_stall", threshold=0.5, clear_threshold=0.2, for_seconds=0.0,
        step_seconds=0.1, cooldown_seconds=0.1,
    )  # fmt: skip

    def make_guard(engine: AsyncEngine) -> Guard:
        rules = Rules(rules=(stall,))
        sense = LedgerSense()
        hands = EngineHands(engine, lambda: loop, patience=0.05)
        made.append(Guard(rules, hands, sense, mode="act", configured=controls_of(config), channels=[channel]))
        return made[0]

    async def look_until(rung: int) -> None:
        async with asyncio.timeout(60):
            while made[0].kept.ladder["stall"].rung != rung:
                await asyncio.to_thread(made[0].look)
                assert not made[0].failure, made[0].failure
                await asyncio.sleep(0.02)

    def wait(step: int) -> None:
        if step >= 20:
            standing.set()
            gate.wait(60)

    async with real_core(config, record=True, make_guard=make_guard, before_step=wait) as core:
        gate.clear()
        call = asyncio.create_task(core.complete([1, 2, 3], max_tokens=60, ignore_eos=True))
        assert await asyncio.to_thread(standing.wait, 60)
        await look_until(1)
        made[0].pager.work()
        (page,) = channel.taken
        assert "step_stall is" in page.evidence
        assert made[0].kept.unrecorded, "the engine that stalls has not answered"
        gate.set()
        assert (await call).json()["usage"]["completion_tokens"] == 60
        await look_until(0)
        await asyncio.to_thread(made[0].look)
        assert made[0].kept.unrecorded == []
        made[0].stop()


async def test_persons_acknowledge_override_and_pause_by_name(desk: Desk, tmp_path: Path, caplog):
    await desk.looks(9, itl_p99=0.5)
    with caplog.at_level(logging.INFO):
        told = (await desk.act("acknowledge", rule="slow", reason="a batch job")).json()
    assert "admin anna guard: 'acknowledge slow': 'a batch job'" in caplog.text
    assert told["approval"]["state"] == "approved"
    assert told["guard"]["rules"][0]["acknowledged_by"] == "anna"
    told = (await desk.act("override", "bert", rule="slow", expires_in_seconds=60)).json()["guard"]
    assert (told["rules"][0]["rung"], told["rules"][0]["overridden_by"]) == (0, "bert")
    assert (await desk.control("max_num_seqs"))["value"] == 64
    assert (await desk.act("end_override", rule="slow")).status_code == 200
    assert (await desk.act("pause", expires_in_seconds=60)).json()["guard"]["state"] == "paused"
    assert (await desk.act("resume", "bert")).json()["guard"]["state"] == "ok"
    await desk.core.engine.stop()
    (path,) = runs_in(tmp_path / "l")
    with LedgerReader(path) as reader:
        said = [(row.who, row.why) for row in reader.all_controls() if row.set_by == "person" and row.name == "guard"]
    assert said == [
        ("anna", "slow: acknowledged: a batch job"),
        ("bert", "slow: overridden for 60 s: because"),
        ("anna", "slow: override ended: because"),
        ("anna", "paused for 60 s: because"),
        ("bert", "resumed: because"),
    ]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"action": "acknowledge", "rule": "slow"}, 409, "Rule slow waits for no acknowledgement."),
        ({"action": "acknowledge", "rule": "fast"}, 404, "There is no rule 'fast'; the rules are slow."),
        ({"action": "acknowledge"}, 400, "rule is missing"),
        ({"action": "override", "rule": "slow"}, 400, "expires_in_seconds is missing; an override must end."),
        ({"action": "override", "rule": "slow", "expires_in_seconds": 0}, 400, "expires_in_seconds"),
        ({"action": "resume"}, 409, "The guard is not paused."),
        ({"action": "restart"}, 400, "action"),
        ({"action": "pause", "reason": ""}, 400, "reason"),
        ({"action": "pause", "until": "noon"}, 400, "until"),
    ],
)
async def test_what_cannot_be_done_is_told(desk: Desk, body, status, text):
    response = await desk.act(**body)
    assert text in assert_error(response, status)


async def test_the_words_of_the_guard_are_its_own(desk: Desk):
    response = await desk.post("/admin/policy", set={"guard": "all is well"}, reason="x")
    assert "guard says what the guard does" in assert_error(response, 400, "set")


async def test_two_persons_and_releases(tmp_path: Path):
    async with desk_of(tmp_path, two_person=True) as desk:
        response = await desk.act("override", rule="slow", expires_in_seconds=60)
        assert response.status_code == 202
        name = response.json()["approval"]["id"]
        again = await desk.post("/admin/approvals", action="approve", id=name, reason="me again")
        assert "key of another name" in assert_error(again, 409)
        done = await desk.post("/admin/approvals", "bert", action="approve", id=name, reason="fine")
        assert (done.status_code, done.json()["state"]) == (200, "approved")
        assert (await desk.get("/admin/guard"))["rules"][0]["overridden_by"] == "bert"
        asked = (await desk.post("/admin/approvals", action="open", kind="release", subject="c7", reason="x")).json()
        assert (asked["needed"], asked["lacking"]) == (2, 2)
        first = await desk.post("/admin/approvals", action="approve", id=asked["id"], reason="x")
        assert first.status_code == 202
        refused = (await desk.post("/admin/approvals", "bert", action="refuse", id=asked["id"], reason="x")).json()
        assert refused["state"] == "refused"
        listed = (await desk.get("/admin/approvals"))["approvals"]
        assert [each["subject"] for each in listed] == ["c7", "slow"]
        assert_error(await desk.post("/admin/approvals", action="approve", id="a99", reason="x"), 404)
        response = await desk.post("/admin/approvals", action="open", kind="pause", subject="x", reason="x")
        assert "opened by what they are for" in assert_error(response, 409)


async def test_two_persons_change_the_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    async with desk_of(tmp_path, two_person=True, live=True) as desk:

        async def run(*arguments: str) -> str:
            command = [*arguments, "--url", desk.core.url, "--api-key", desk.keys["anna"]]
            assert await asyncio.to_thread(main, command) == 0
            return capsys.readouterr().out

        told = await run("policy", "set", "max_num_seqs=16", "--reason", "less memory", "--for", "600")
        assert "It waits for 1 more: ekiden approve a1 --reason TEXT" in told
        told = await run("approve")
        assert "a1 open, waits for 1 more: policy max_num_seqs=16 for 600 s, asked by anna" in told
        assert "   max_num_seqs: 16" in told
        assert (await desk.control("max_num_seqs"))["value"] == 64
        same = await desk.post("/admin/policy", set={"max_num_seqs": 16}, reason="x", expires_in_seconds=600)
        assert "Approval a1 of the same waits already" in assert_error(same, 409)
        done = await desk.post("/admin/approvals", "bert", action="approve", id="a1", reason="right")
        assert (done.status_code, done.json()["state"]) == (200, "approved")
        control = await desk.control("max_num_seqs")
        assert (control["value"], control["who"], control["why"]) == (
            16, "anna", "less memory (approved by bert: right)",
        )  # fmt: skip
        assert 590 < control["expires_in_seconds"] <= 600
        back = await desk.post("/admin/policy", "bert", set={"max_num_seqs": 64}, reason="back")
        assert (back.status_code, back.json()["two_person"]) == (200, True)
        cannot = await desk.post("/admin/policy", set={"max_num_seqs": 0}, reason="x")
        assert "max_num_seqs is 0" in assert_error(cannot, 400, "set")
        block = await desk.post("/admin/policy", set={"max_num_seqs": 96, "release": "try"}, reason="x")
        assert "let a release set max_num_seqs" in assert_error(block, 409)
        assert "takes no new requests" in await run("policy", "drain")
        assert "takes new requests" in await run("policy", "drain", "--end")
        held = ControlChange(values={"draining": True}, set_by=SetBy.SOFTWARE_RULE, who="guard:slow")
        await desk.core.engine.set_controls(held)
        assert "It waits for 1 more: ekiden approve a2" in await run("policy", "drain", "--end")
        assert (await desk.post("/admin/drain", draining=False)).status_code == 409
        asked: dict[str, Any] = {"action": "open", "kind": "release", "subject": "try", "reason": "x"}
        asked["values"] = {"max_num_seqs": [0]}
        assert (await desk.post("/admin/approvals", **asked)).json()["values"] == {"max_num_seqs": [0]}
        assert_error(await desk.post("/admin/approvals", **{**asked, "values": {"slots": [1]}}), 400, "values")
        assert_error(await desk.post("/admin/approvals", **{**asked, "kind": "party"}), 400, "values")


async def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    async with desk_of(tmp_path, live=True) as desk:

        async def run(*arguments: str, who: str = "anna", status: int = 0) -> str:
            command = [*arguments, "--url", desk.core.url, "--api-key", desk.keys[who]]
            assert await asyncio.to_thread(main, command) == status, capsys.readouterr()
            captured = capsys.readouterr()
            return captured.out + captured.err

        await desk.looks(9, itl_p99=0.5)
        told = await run("guard", "status")
        assert "guard: act, ok" in told
        assert (
            "slow: itl_p99 0.5 (over 0.2), rung 2 of 2 (shrink_batch, require_acknowledgement) waits for a pers" in told
        )
        assert "a1 waits for 1 yes: acknowledge slow, asked by guard" in told
        assert "a1 open, waits for 1 more: acknowledge slow" in await run("approve")
        assert "a1 approved: acknowledge slow, asked by guard (bert yes)" in await run(
            "approve", "a1", "--reason", "seen", who="bert"
        )
        assert "bert: slow acknowledged: seen" in await run("guard", "status")
        assert "overridden by anna" in await run("guard", "override", "slow", "--for", "60", "--reason", "test")
        assert "overridden" not in (await run("guard", "override", "slow", "--end", "--reason", "x")).splitlines()[2]
        assert "paused by anna: quiet" in await run("guard", "pause", "--reason", "quiet")
        assert json.loads(await run("guard", "resume", "--reason", "x", "--json"))["guard"]["state"] == "ok"
        assert "scheduling_policy = fair" in await run(
            "policy", "set", "scheduling_policy=fair", "max_queue_seconds=2.5", "--reason", "try", "--for", "60"
        )
        told = await run("policy", "show")
        assert "max_queue_seconds = 2.5   (by anna, for" in told
        assert "takes no new requests; 0 in flight" in await run("policy", "drain")
        assert "takes new requests" in await run("policy", "drain", "--end")
        assert "not in flight" in await run("policy", "abort", "nobody", status=2)
        assert "does not have the scope" in await run("guard", "status", who="user", status=2)
        assert "say why with --reason" in await run("approve", "a1", status=2)
        assert "NAME=VALUE" in await run("policy", "set", "max_num_seqs", "--reason", "x", status=2)
        assert "with --for SECONDS" in await run("guard", "override", "slow", "--reason", "x", status=2)
