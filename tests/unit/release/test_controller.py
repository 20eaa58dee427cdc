"""Whole releases in virtual time: the production engine serves, and is recorded; nothing else is made up."""

from typing import Any

import msgspec
import pytest

from ekiden.release.controller import Controller
from ekiden.release.exposure import Switchback
from ekiden.release.server import Asked
from ekiden.release.state import ArmName, Event, Phase
from ekiden.release.store import ReleaseStore, create
from ekiden.state.controls import SetBy
from tests.unit.release.world import World, plan_with


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    yield world
    world.close()


def begun(world: World, folder, plan) -> ReleaseStore:
    store = ReleaseStore(folder / "release")
    before = {name: world.policy()[name].value for name in plan.candidate}
    create(store, plan, who="anna", before=before)
    return store


def controller(world: World, store: ReleaseStore, server: Any = None) -> Controller:
    state = store.known()
    exposure = Switchback(server or world, state.plan, state.digest, state.before)
    return Controller(store, server or world, exposure, now=lambda: world.now)


def carry_on(world: World, store: ReleaseStore, *, most: float = 2_000.0, each=lambda: None):
    """Until it is a person's turn or over."""
    carrier, end = controller(world, store), world.now + most
    while (pause := carrier.tick()) is not None:
        world.advance(max(pause, 0.05))
        each()
        assert world.now < end, store.known().message
    return store.known()


def events(store: ReleaseStore) -> list[str]:
    return [entry.event for entry in store._journal.read()[0]]


def test_no_block_begins_before_a_second_person_lets_it(world, tmp_path):
    store = begun(world, tmp_path, plan_with())
    world.leave_asked = Asked(id="a3", kind="release", subject="try", state="open", lacking=1)
    carrier = controller(world, store)
    for _ in range(100):  # longer than a server may be silent
        assert carrier.tick() is not None
        world.advance(1.0)
    assert carrier.trouble == "another person must let it set that: `ekiden approve a3 --reason TEXT`"
    assert (store.known().phase, world.sets) == (Phase.PENDING, [])
    subject = f"try ({store.known().digest[:12]})"
    assert world.leaves[0] == (subject, {"max_num_seqs": [16, 8]})
    world.leave_asked = msgspec.structs.replace(world.leave_asked, state="approved")
    world.advance(carrier.tick() or 0.1)
    assert (store.known().phase, carrier.trouble) == (Phase.PROGRESSING, "")
    carrier.roll_back("not today", who="anna")
    assert world.leaves[-1] == (subject, "ended")


def test_a_second_person_who_says_no_ends_it(world, tmp_path):
    store = begun(world, tmp_path, plan_with())
    world.leave_asked = Asked(id="a3", kind="release", subject="try", state="refused")
    state = carry_on(world, store)
    assert (state.phase, state.block) == (Phase.DEGRADED, None)
    assert state.message == "RolloutAborted: what the release may set (a3) is refused, and not approved"


def test_a_good_candidate_waits_for_a_person(world, tmp_path):
    store = begun(world, tmp_path, plan_with())
    world.advance(3.0)
    state = carry_on(world, store)
    assert (state.phase, state.current_step_index, state.set_weight) == (Phase.PAUSED, 2, 0), state.message
    assert state.pause_conditions[0]["reason"] == "CanaryPauseStep"
    assert len(state.pairs) == 6
    assert {each.name: each.phase for each in state.analysis_run.metric_results} == {
        "slo_missed_share": "Successful",
        "error_share": "Successful",
    }
    assert all(pair.candidate.offered >= 5 for pair in state.pairs.values())
    world.advance(600.0)
    assert store.known() == state, "nothing promotes itself"
    assert world.policy()["max_num_seqs"].value == 8


def test_a_bad_candidate_is_rolled_back_by_itself(world, tmp_path):
    store = begun(world, tmp_path, plan_with(max_num_seqs="1"))
    state = carry_on(world, store)
    assert (state.phase, state.abort) == (Phase.DEGRADED, True)
    assert state.message.startswith("RolloutAborted: the candidate missed more in 5 of 5 pairs")
    assert len(state.pairs) == 5, "before the horizon of six"
    assert world.policy()["max_num_seqs"].value == 8
    world.advance(30.0)
    assert {name: told.set_by for name, told in world.policy().items() if told.set_by} == {"release": "person"}


def test_gross_harm_in_one_block_is_enough(world, tmp_path):
    plan = plan_with(max_num_seqs="1", failureCondition='"result > 0.1"\nblockFailureCondition = "result > 0.5"')
    state = carry_on(world, begun(world, tmp_path, plan))
    assert state.phase is Phase.DEGRADED
    assert "which meets result > 0.5" in state.message
    assert sum(arm is ArmName.CANDIDATE for arm in state.arms.values()) == 1


def test_no_requests_are_missing_data_and_go_back(world, tmp_path):
    store = begun(world, tmp_path, plan_with())
    world.stop_traffic()
    state = carry_on(world, store)
    assert state.phase is Phase.DEGRADED
    assert "missing data fails" in state.message
    assert len(state.measured) == 1


def test_a_server_out_of_reach_goes_back(world, tmp_path):
    store = begun(world, tmp_path, plan_with())

    def lose():
        world.reachable = store.known().block is None

    state = carry_on(world, store, each=lose)
    assert state.phase is Phase.DEGRADED
    assert "nobody answers; missing data fails" in state.message
    assert world.core.controls.now.max_num_seqs == 8


def test_a_guard_that_has_to_act_under_the_candidate_goes_back(world, tmp_path):
    store = begun(world, tmp_path, plan_with())

    def guard():
        block = store.known().block
        if block is not None and block.arm is ArmName.CANDIDATE and not world.policy()["guard"].value:
            values = {"guard": "itl: tighten_prefill", "max_num_batched_tokens": 64 + 48}
            world.change(values, why="ITL p99", seconds=5.0, who="guard:itl", set_by=SetBy.SOFTWARE_RULE)

    state = carry_on(world, store, each=guard)
    assert state.phase is Phase.DEGRADED
    assert "the guard had to act under the candidate" in state.message


def test_a_change_by_somebody_else_voids_the_pair(world, tmp_path):
    store = begun(world, tmp_path, plan_with())
    done: list[Any] = []

    def meddle():
        block = store.known().block
        if block is not None and block.pair == 1 and not done:
            done.append(block)
            world.change({"max_overtakes": 5}, why="trying", seconds=3.0, who="bob")

    state = carry_on(world, store, each=meddle)
    assert state.phase is Phase.PAUSED, state.message
    assert events(store).count(Event.PAIR_VOID) == 1
    assert state.attempts == {1: 1}


def test_the_baseline_that_changed_goes_back(world, tmp_path):
    store = begun(world, tmp_path, plan_with())
    world.change({"max_num_seqs": 4}, why="less", seconds=None, who="bob")
    state = carry_on(world, store)
    assert "what the candidate is compared with has changed" in state.message
    assert world.policy()["max_num_seqs"].value == 4, "what bob set is not undone"


def test_promotion_and_its_undoing(world, tmp_path):
    store = begun(world, tmp_path, plan_with())
    carry_on(world, store)
    with pytest.raises(Exception, match="lacks approvals"):
        controller(world, store).promote("anna")
    assert store.known().phase is Phase.PAUSED, "and nothing was written"
    store.append(Event.APPROVED, who="bob", why="looks right")
    state = controller(world, store).promote("anna")
    assert (state.phase, state.set_weight, state.message) == (Phase.HEALTHY, 100, "promoted by anna")
    told = world.policy()["max_num_seqs"]
    assert (told.value, told.expires_in_seconds) == (16, None)
    assert "approved by bob (looks right)" in told.why
    state = controller(world, store).roll_back("the nights are slow", who="carl")
    assert (state.phase, state.message) == (Phase.DEGRADED, "RolloutAborted: the nights are slow")
    assert world.policy()["max_num_seqs"].value == 8


def test_an_abort_in_the_middle_of_a_block_takes_effect_at_once(world, tmp_path):
    store = begun(world, tmp_path, plan_with())
    carrier = controller(world, store)
    while (block := store.known().block) is None or block.arm is not ArmName.CANDIDATE:
        world.advance(carrier.tick() or 0.1)
    assert world.policy()["max_num_seqs"].value == 16
    state = controller(world, store).roll_back("never mind", who="bob")
    assert state.phase is Phase.DEGRADED
    assert world.policy()["max_num_seqs"].value == 8
    assert carrier.tick() is None
    world.advance(20.0)
    assert world.policy()["max_num_seqs"] == world.policy()["max_num_seqs"].__class__(value=8), (
        "nothing is left standing"
    )
