"""A process that is killed between any two writes: the next one carries the release on, or back, never half."""

import shutil
from typing import Any

import pytest

from ekiden.release.controller import Controller
from ekiden.release.exposure import Switchback
from ekiden.release.state import ArmName, Event, Phase
from ekiden.release.store import ReleaseStore
from tests.unit.release.test_controller import begun, carry_on, controller, events
from tests.unit.release.world import World, plan_with

SHORT = {"pairs": "5", "block_seconds": "4", "drain_seconds": "1", "settle_seconds": "4"} | {
    "successCondition": '"result <= 0.3"',
    "failureCondition": '"result > 0.3"',
}


class Killed(BaseException):
    pass


class Fuse:
    """Kills at the ``at``-th write, before or after which it happens."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def burn(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise Killed


class FusedStore(ReleaseStore):
    fuse: Fuse

    def append(self, event: Event, **payload: Any):
        self.fuse.burn()
        state = super().append(event, **payload)
        self.fuse.burn()
        return state


class FusedServer:
    def __init__(self, world: World, fuse: Fuse) -> None:
        self.policy, self.ledger, self._world, self._fuse = world.policy, world.ledger, world, fuse
        self.leave, self.end_leave, self.place = world.leave, world.end_leave, world.place

    def set(self, values, *, why, seconds):
        self._fuse.burn()
        told = self._world.set(values, why=why, seconds=seconds)
        self._fuse.burn()
        return told


def fused(world: World, store: ReleaseStore, fuse: Fuse) -> Controller:
    doomed, server = FusedStore(store.folder), FusedServer(world, fuse)
    doomed.fuse = fuse
    state = store.known()
    exposure = Switchback(server, state.plan, state.digest, state.before)
    return Controller(doomed, server, exposure, now=lambda: world.now)


def run_until_killed(world: World, carrier: Controller) -> bool:
    try:
        while (pause := carrier.tick()) is not None:
            world.advance(max(pause, 0.05))
    except Killed:
        return True
    return False


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 61, 62])
def test_a_canary_goes_on_after_a_kill(tmp_path, at):
    world = World(tmp_path, rate=2.5)
    store = begun(world, tmp_path, plan_with(**SHORT))
    killed = run_until_killed(world, fused(world, store, Fuse(at)))
    assert killed == (at <= 62), "five pairs are 62 writes: 10 blocks of 2 + 2 + 2, and the analysis"
    world.advance(0.5)
    state = carry_on(world, store)
    assert state.phase is Phase.PAUSED, state.message
    assert world.policy()["max_num_seqs"].value == 8
    begins = events(store).count(Event.BLOCK_BEGUN)
    assert begins == 10 + len(state.attempts), "no block is lost or made twice"
    world.close()


@pytest.mark.parametrize("down", [2.0, 30.0])
def test_nothing_stays_in_force_while_nobody_carries_it_on(tmp_path, down):
    world = World(tmp_path, rate=2.5)
    store = begun(world, tmp_path, plan_with(**SHORT))
    carrier = controller(world, store)
    while (block := store.known().block) is None or block.arm is not ArmName.CANDIDATE:
        world.advance(carrier.tick() or 0.1)
    world.advance(down)
    assert world.policy()["max_num_seqs"].value == (16 if down < 4.0 else 8)
    assert carry_on(world, store).phase is Phase.PAUSED
    world.close()


@pytest.fixture(scope="module")
def paused(tmp_path_factory):
    """A release that waits for a person."""
    folder = tmp_path_factory.mktemp("paused")
    world = World(folder, rate=2.5)
    store = begun(world, folder, plan_with(**SHORT))
    assert carry_on(world, store).phase is Phase.PAUSED
    world.close()
    return store.folder


@pytest.fixture
def waiting(paused, tmp_path):
    shutil.copytree(paused, tmp_path / "release")
    world = World(tmp_path, rate=0.0)
    yield world, ReleaseStore(tmp_path / "release")
    world.close()


@pytest.mark.parametrize("at", range(1, 8))
def test_a_promotion_is_carried_through_or_not_begun(waiting, at):
    world, store = waiting
    store.append(Event.APPROVED, who="bob", why="looks right")
    try:
        fused(world, store, Fuse(at)).promote("anna")
        assert at == 7
    except Killed:
        assert at <= 6
    begun_by_then = Event.PROMOTION_BEGUN in events(store)
    assert begun_by_then == (at > 1)
    state = carry_on(world, store)
    assert state.phase is (Phase.HEALTHY if begun_by_then else Phase.PAUSED)
    assert world.policy()["max_num_seqs"].value == (16 if begun_by_then else 8)


@pytest.mark.parametrize("at", range(1, 10))
def test_a_promotion_is_taken_back_whole(waiting, at):
    world, store = waiting
    store.append(Event.APPROVED, who="bob", why="looks right")
    controller(world, store).promote("anna")
    try:
        fused(world, store, Fuse(at)).roll_back("slow nights", who="carl")
        assert at == 9
    except Killed:
        assert at <= 8
    state = carry_on(world, store)
    assert (state.phase, world.policy()["max_num_seqs"].value) == (
        (Phase.HEALTHY, 16) if at == 1 else (Phase.DEGRADED, 8)
    )


@pytest.mark.parametrize("at", range(1, 9))
def test_a_block_is_taken_back_whole(tmp_path, at):
    world = World(tmp_path, rate=2.5)
    store = begun(world, tmp_path, plan_with(**SHORT))
    carrier = controller(world, store)
    while (block := store.known().block) is None or block.arm is not ArmName.CANDIDATE:
        world.advance(carrier.tick() or 0.1)
    with pytest.raises(Killed):
        fused(world, store, Fuse(at)).roll_back("never mind", who="carl")
    if at == 1:  # nothing was noted
        return
    state = carry_on(world, store)
    assert (state.phase, world.policy()["max_num_seqs"].value) == (Phase.DEGRADED, 8)
    world.close()


def test_an_engine_that_is_restarted_voids_the_pair(tmp_path):
    world = World(tmp_path, rate=2.5)
    store = begun(world, tmp_path, plan_with(**SHORT))
    carrier = controller(world, store)
    while len(store.known().measured) < 3:
        world.advance(max(carrier.tick() or 0.0, 0.05))
    world.close()
    again = World(tmp_path, rate=2.5, run_id="second", start=world.clock.time)
    state = carry_on(again, store)
    assert state.phase is Phase.PAUSED, state.message
    assert state.attempts in ({1: 1}, {})
    again.close()
