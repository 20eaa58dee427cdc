"""``/admin``: absent without a key for it, and what its actions do to the real engine core."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from ekiden.api.admin import controls_told
from ekiden.api.keys import new_key
from ekiden.config import Config, ServerConfig, controls_of
from ekiden.state.controls import ControlChange, ControlState, SetBy
from tests.api.conftest import Memory, assert_error
from tests.api.real_core import RealCore, StandingClock, real_core

ACTIONS = ("pause", "resume", "abort", "drain")


class Gate:
    """Lets the engine take a step for each permit; open, as many as it likes."""

    def __init__(self) -> None:
        self.permits = threading.Semaphore(0)
        self.open = threading.Event()
        self.used = 0
        """Permits that were taken."""

    def __call__(self, step: int) -> None:
        while not self.open.is_set():
            if self.permits.acquire(timeout=0.01):
                self.used += 1
                return

    async def step_until(self, condition: Callable[[], bool]) -> None:
        """Let the engine take a step at a time until it is so. A step that is long in coming gets no second permit."""
        async with asyncio.timeout(60):
            while not condition():
                used = self.used
                self.permits.release()
                while self.used == used and not condition():
                    await asyncio.sleep(0.001)


class Desk:
    """An operator, a user, and the server between them."""

    def __init__(self, core: RealCore, gate: Gate, clock: StandingClock, admin: str, user: str) -> None:
        self.core = core
        self.gate = gate
        self.clock = clock
        self.admin = {"authorization": f"Bearer {admin}"}
        core.http.headers["authorization"] = f"Bearer {user}"

    async def do(self, action: str, **body: object) -> httpx.Response:
        return await self.core.http.post(f"/admin/{action}", json=body, headers=self.admin)

    async def load(self, **wanted: int) -> None:
        """Wait until ``/load`` says so."""
        async with asyncio.timeout(60):
            while True:
                load = (await self.core.http.get("/load")).json()
                if {key: load[key] for key in wanted} == wanted:
                    return
                await asyncio.sleep(0.002)

    async def time_passes(self, seconds: float) -> None:
        """And the engine, which waits by the real clock, looks at its own."""
        self.clock.now += seconds
        assert_error(await self.core.complete("hi", max_tokens=-1), 400)  # which it is to note

    async def call_id(self) -> str:
        """The id of the only call that is being answered."""
        async with asyncio.timeout(60):
            while not self.core.app.state.doors.generation.flight.calls:
                await asyncio.sleep(0.002)
        (call_id,) = self.core.app.state.doors.generation.flight.calls
        return str(call_id)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    (admin, admin_hash), (user, user_hash) = new_key(), new_key()
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[[keys]]\nname = "ops"\nhash = "{admin_hash}"\nscopes = ["admin"]\n'
        f'[[keys]]\nname = "user"\nhash = "{user_hash}"\n'
    )
    gate, clock = Gate(), StandingClock()
    async with real_core(Config(server=ServerConfig(api_keys_file=str(path))), before_step=gate, clock=clock) as core:
        yield Desk(core, gate, clock, admin, user)
        gate.open.set()
        await core.clean()


def test_a_change_that_has_expired_is_not_told():
    """Such as one that set what was there already, of whose end the engine reports nothing."""
    change = ControlChange(values={"max_num_seqs": 64}, set_by=SetBy.PERSON, who="anna", expires_at=time.monotonic())
    told = controls_told(ControlState(controls=controls_of(Config()), changes=[change]))["max_num_seqs"]
    assert told == {"value": 64, "set_by": "configuration", "who": "", "why": "", "expires_in_seconds": None}


@pytest.mark.parametrize("action", [*ACTIONS, "policy", ""])
async def test_absent_without_keys(memory: Memory, action):
    assert_error(await memory.http.post(f"/admin/{action}", json={}), 404, code="not_found")
    assert_error(await memory.http.get(f"/admin/{action}"), 404, code="not_found")
    assert "/admin" not in (await memory.http.get("/openapi.json")).text
    assert memory.engine.commands == []


@pytest.mark.parametrize("action", ACTIONS)
async def test_absent_while_no_key_is_an_admins(tmp_path: Path, action):
    key, digest = new_key()
    path = tmp_path / "keys.toml"
    path.write_text(f'[[keys]]\nname = "user"\nhash = "{digest}"\n')
    async with real_core(Config(server=ServerConfig(api_keys_file=str(path)))) as core:
        response = await core.http.post(f"/admin/{action}", json={}, headers={"x-api-key": key})
        assert_error(response, 404, code="not_found")


async def test_pause_and_resume(desk: Desk):
    call = asyncio.create_task(desk.core.complete([1, 2, 3], max_tokens=50, ignore_eos=True))
    call_id = await desk.call_id()
    desk.gate.permits.release()
    await desk.load(running=1)
    answer = (await desk.do("pause", request_id=call_id)).json()
    assert answer == {"request_id": call_id, "status": "paused", "answers": [call_id]}
    desk.gate.open.set()
    await desk.load(running=0, paused=1)
    assert not call.done()
    assert (await desk.do("resume", request_id=call_id)).json()["status"] == "resumed"
    assert (await call).json()["usage"]["completion_tokens"] == 50


async def test_a_paused_request_gives_the_same_tokens(desk: Desk):
    desk.gate.open.set()
    plain = (await desk.core.complete([1, 2, 3], max_tokens=50, ignore_eos=True, temperature=0)).json()
    desk.gate.open.clear()
    call = asyncio.create_task(desk.core.complete([1, 2, 3], max_tokens=50, ignore_eos=True, temperature=0))
    call_id = await desk.call_id()
    desk.gate.permits.release(7)
    await desk.do("pause", request_id=call_id)
    desk.gate.open.set()
    await desk.load(paused=1)
    await desk.do("resume", request_id=call_id)
    assert (await call).json()["choices"] == plain["choices"]


async def test_abort_ends_all_answers_of_a_call(desk: Desk, caplog):
    call = asyncio.create_task(desk.core.complete("hi", n=3, max_tokens=50, ignore_eos=True))
    call_id = await desk.call_id()
    with caplog.at_level(logging.INFO):
        answer = (await desk.do("abort", request_id=call_id)).json()
    assert answer["answers"] == [f"{call_id}-{index}" for index in range(3)]
    assert f"admin ops aborted request {call_id}" in caplog.text
    desk.gate.open.set()
    assert assert_error(await call, 503, code="aborted") == "Ended by ops."
    await desk.core.clean()


async def test_an_abort_says_who_and_why(desk: Desk):
    call = asyncio.create_task(desk.core.complete("hi", max_tokens=50, ignore_eos=True))
    await desk.do("abort", request_id=await desk.call_id(), reason="it blocks the others")
    desk.gate.open.set()
    assert assert_error(await call, 503, code="aborted") == "Ended by ops: it blocks the others."


async def test_a_drain_is_recorded_with_its_reason(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ekiden.api.admin.DRAIN_SECONDS", 60.0)
    desk.gate.open.set()
    await desk.do("drain", reason="maintenance")
    told = (await desk.core.http.get("/admin/policy", headers=desk.admin)).json()["controls"]["draining"]
    assert (told["value"], told["who"], told["why"]) == (True, "ops", "maintenance")


async def test_one_answer_of_several_is_named_by_its_own_id(desk: Desk):
    call = asyncio.create_task(desk.core.complete("hi", n=2, max_tokens=5))
    call_id = await desk.call_id()
    assert (await desk.do("pause", request_id=f"{call_id}-1")).json()["answers"] == [f"{call_id}-1"]
    desk.gate.open.set()
    await desk.load(paused=1, running=0)
    await desk.do("resume", request_id=f"{call_id}-1")
    assert (await call).status_code == 200


@pytest.mark.parametrize("request_id", ["nobody", "x-0", "-", "x" * 100])
async def test_unknown_requests(desk: Desk, request_id):
    for action in ("pause", "resume", "abort"):
        response = await desk.do(action, request_id=request_id)
        assert_error(response, 404, "request_id", "request_not_found")


@pytest.mark.parametrize("body", [{}, {"request_id": ""}, {"request_id": 5}, {"request_id": "x", "zzz": 1}])
async def test_wrong_bodies(desk: Desk, body):
    assert_error(await desk.do("abort", **body), 400)


async def test_drain_closes_the_door_and_opens_it(desk: Desk):
    call = asyncio.create_task(desk.core.complete("hi", max_tokens=5, ignore_eos=True))
    await desk.call_id()
    assert (await desk.do("drain")).json() == {"draining": True, "in_flight": 1}
    response = await desk.core.complete("hi")
    assert "operator" in assert_error(response, 503, code="draining")
    assert int(response.headers["retry-after"]) >= 1
    assert (await desk.core.http.get("/ready")).json() == {"status": "draining"}
    assert (await desk.core.http.get("/health")).status_code == 200
    assert (await desk.core.http.get("/admin/policy", headers=desk.admin)).json()["draining"] is True
    desk.gate.open.set()
    assert (await call).json()["usage"]["completion_tokens"] == 5  # what was taken goes on
    assert (await desk.do("drain", draining=False)).json()["draining"] is False
    assert (await desk.core.http.get("/ready")).status_code == 200
    assert (await desk.core.complete("hi", max_tokens=1)).status_code == 200


async def test_policy(desk: Desk):
    state = (await desk.core.http.get("/admin/policy", headers=desk.admin)).json()
    assert state["epoch"] == 0
    assert state["draining"] is False
    nobody = {"set_by": "configuration", "who": "", "why": "", "expires_in_seconds": None}
    assert state["controls"]["scheduling_policy"] == {"value": "fcfs", **nobody}
    assert state["controls"]["max_num_queued_reqs"] == {"value": 4096, **nobody}


async def test_a_policy_is_changed_with_a_reason_and_an_end(desk: Desk, caplog):
    desk.gate.open.set()
    wanted = {"scheduling_policy": "priority", "max_num_seqs": 2}
    with caplog.at_level(logging.INFO):
        response = await desk.do("policy", set=wanted, reason="burst of batch work", expires_in_seconds=1000)
    assert response.status_code == 200
    state = response.json()
    assert state["epoch"] == 1
    told = state["controls"]["max_num_seqs"]
    assert 0 < told.pop("expires_in_seconds") <= 1000
    assert told == {"value": 2, "set_by": "person", "who": "ops", "why": "burst of batch work"}
    assert f"admin ops set {wanted}: 'burst of batch work'" in caplog.text
    await desk.time_passes(2000)
    async with asyncio.timeout(60):
        while (await desk.core.http.get("/admin/policy", headers=desk.admin)).json()["epoch"] == 1:
            await asyncio.sleep(0.02)
    state = (await desk.core.http.get("/admin/policy", headers=desk.admin)).json()
    assert state["controls"]["max_num_seqs"]["value"] == 64
    assert state["controls"]["scheduling_policy"]["set_by"] == "configuration"


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0; it must be at least 1"),
        ({"max_num_seqs": "many"}, "max_num_seqs is 'many'"),
        ({"scheduling_policy": "lifo"}, "must be one of fcfs"),
        ({"max_num_batched_tokens": 65}, "max_num_batched_tokens is 65; with max_num_seqs 64"),
        ({"block_size": 8}, "block_size cannot be changed while the engine runs"),
        ({"tenants": {"a": {"weight": -1.0}}}, "weight is -1.0"),
    ],
)
async def test_a_policy_that_cannot_work_is_refused_and_changes_nothing(desk: Desk, wanted, text):
    desk.gate.open.set()
    response = await desk.do("policy", set=wanted, reason="try")
    assert text in assert_error(response, 400, "set")
    assert (await desk.core.http.get("/admin/policy", headers=desk.admin)).json()["epoch"] == 0


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"set": {}, "reason": "x"},
        {"set": {"max_num_seqs": 2}},
        {"set": {"max_num_seqs": 2}, "reason": "x", "expires_in_seconds": 0},
        {"set": {"max_num_seqs": 2}, "reason": "x", "until": "noon"},
    ],
)
async def test_a_policy_needs_a_field_and_a_reason(desk: Desk, body):
    assert_error(await desk.do("policy", **body), 400)


async def test_a_drain_that_expires_opens_the_server_again(desk: Desk):
    desk.gate.open.set()
    await desk.do("policy", set={"draining": True}, reason="upgrade of a disk", expires_in_seconds=1000)
    assert_error(await desk.core.complete("hi"), 503, code="draining")
    await desk.time_passes(2000)
    async with asyncio.timeout(60):
        while (await desk.core.http.get("/ready")).status_code != 200:
            await asyncio.sleep(0.02)
    assert (await desk.core.complete("hi", max_tokens=1)).status_code == 200
