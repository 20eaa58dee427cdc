"""A change of policy where two persons are needed: asked for, listed, settled, forgotten; and what one may do alone."""

from typing import Any

import pytest

from ekiden.guard.approvals import ASKED_SECONDS, ApprovalError
from ekiden.guard.hands import NoAnswer
from ekiden.state.controls import ControlChange, ControlState, InvalidControls, SetBy
from tests.unit.guard.desk import CONFIGURED, Desk, rule

SLOTS = CONFIGURED.max_num_seqs


@pytest.fixture
def desk() -> Desk:
    return Desk(rule("slow", "shrink_batch"), two_person=True)


def asked(desk: Desk, seconds: float | None = None, **values: Any) -> dict[str, Any]:
    told = desk.people.set_policy(values or {"max_num_seqs": 16}, seconds, "anna", "less memory")
    assert told is not None
    return told


def test_a_second_person_puts_a_change_in_force_from_then_on(desk: Desk) -> None:
    told = asked(desk, 600.0)
    assert (told["kind"], told["subject"]) == ("policy", "max_num_seqs=16 for 600 s")
    assert (told["state"], told["lacking"], told["values"]) == ("open", 1, {"max_num_seqs": 16})
    assert desk.now.max_num_seqs == SLOTS
    assert desk.people.view()["approvals"] == [told]
    with pytest.raises(ApprovalError, match="of the same waits already"):
        asked(desk, 600.0)
    with pytest.raises(ApprovalError, match="key of another name"):
        desk.people.approve(told["id"], "anna", "me again")
    desk.looks(100)
    assert desk.people.approve(told["id"], "bert", "right")["state"] == "approved"
    assert desk.now.max_num_seqs == 16
    (made,) = [change for change in desk.hands.recorded if "max_num_seqs" in change.values]
    assert (made.who, made.set_by) == ("anna", SetBy.PERSON)
    assert (made.why, made.expires_at) == ("less memory (approved by bert: right)", desk.clock.now + 600)
    assert "anna asks to set max_num_seqs=16 for 600 s (approval a1): less memory" in desk.told
    assert "bert approved to set max_num_seqs=16 for 600 s (approval a1), asked for by anna: right" in desk.told
    desk.looks(601)
    assert desk.now.max_num_seqs == SLOTS


def test_a_change_is_refused_or_forgotten(desk: Desk) -> None:
    told = asked(desk)
    assert desk.people.approve(told["id"], "bert", "no", yes=False)["state"] == "refused"
    again = asked(desk)
    assert again["id"] != told["id"]
    desk.looks(2)
    desk.clock.now += ASKED_SECONDS - 3
    assert desk.people.approvals()[0]["state"] == "open"
    desk.looks(1)
    assert desk.people.approvals()[0]["state"] == "expired"
    assert "guard approval a2 of policy max_num_seqs=16 expired: nobody settled what anna asked for" in desk.told
    with pytest.raises(ApprovalError, match="is expired already"):
        desk.people.approve(again["id"], "bert", "late")
    assert desk.now.max_num_seqs == SLOTS


def test_a_guard_that_is_off_forgets_too() -> None:
    desk = Desk(mode="off", two_person=True)
    asked(desk)
    desk.clock.now += ASKED_SECONDS
    assert desk.people.view()["approvals"] == []
    with pytest.raises(ApprovalError, match="is expired already"):
        desk.people.approve("a1", "bert", "late")


def test_one_person_may_close_the_server_and_go_back_to_what_is_configured(desk: Desk) -> None:
    desk.hands.person_sets(max_num_seqs=16, scheduling_policy="fair")
    for values in ({"draining": True}, {"max_num_seqs": SLOTS}, {"draining": False}, {"release": "try: aborted"}):
        assert desk.people.set_policy(values, None, "anna", "back") is None
    assert asked(desk, max_num_seqs=SLOTS, scheduling_policy="deadline")["state"] == "open"
    assert Desk(two_person=False).people.set_policy({"max_num_seqs": 16}, None, "anna", "x") is None


def test_what_the_guard_holds_is_not_given_back_by_one_person(desk: Desk) -> None:
    desk.looks(5, itl_p99=0.5)
    assert desk.now.max_num_seqs == SLOTS // 2
    told = asked(desk, max_num_seqs=SLOTS)
    desk.people.approve(told["id"], "bert", "a false alarm")
    assert desk.now.max_num_seqs == SLOTS
    desk.looks(2)
    assert desk.people.view()["rules"][0]["given_up"] == ["max_num_seqs"], "what persons set stands"


def test_what_the_guard_held_until_now_is_not_held(desk: Desk) -> None:
    """An engine does not report an expiry that changes no value."""
    desk.looks(5, itl_p99=0.5)
    (held,) = [change for change in desk.hands.controls().changes if "max_num_seqs" in change.values]
    desk.hands.controls = lambda: ControlState(controls=desk.guard.configured, changes=[held])  # type: ignore[method-assign]
    assert desk.people.needs_second({"max_num_seqs": SLOTS}) == ["max_num_seqs"]
    assert held.expires_at is not None
    desk.clock.now = held.expires_at
    assert desk.people.needs_second({"max_num_seqs": SLOTS}) == []


def test_what_cannot_be_put_in_force_is_not_settled(desk: Desk) -> None:
    with pytest.raises(InvalidControls, match="max_num_seqs is 0"):
        asked(desk, max_num_seqs=0)
    told = asked(desk, max_num_batched_tokens=SLOTS + 100)
    desk.hands.dead = True
    with pytest.raises(NoAnswer):
        desk.people.approve(told["id"], "bert", "right")
    desk.hands.dead = False
    desk.hands.person_sets(max_num_seqs=2 * SLOTS)
    with pytest.raises(ApprovalError, match="max_num_batched_tokens is .*; refuse approval a1"):
        desk.people.approve(told["id"], "bert", "right")
    assert desk.people.approvals()[0]["state"] == "open"
    desk.hands.person_sets(max_num_seqs=SLOTS)
    assert desk.people.approve(told["id"], "bert", "right")["state"] == "approved"
    assert desk.now.max_num_batched_tokens == SLOTS + 100


def test_a_release_may_set_what_a_second_person_let_it_set(desk: Desk) -> None:
    def set_(**values: Any) -> None:
        assert desk.people.set_policy({**values, "release": "try: pair 1.0"}, 8.0, "anna", "x") is None

    with pytest.raises(ApprovalError, match="let a release set max_num_seqs; `ekiden release start PLAN`"):
        set_(max_num_seqs=96)
    allowed = {"max_num_seqs": [96, 80]}
    told = desk.people.let_release("try abc", allowed, "anna", "bursts")
    assert (told["kind"], told["state"], told["until"]) == ("release", "open", None)
    assert desk.people.let_release("try abc", allowed, "anna", "bursts") == told, "it is asked for once"
    desk.people.approve(told["id"], "bert", "try it")
    for value in (96, 80, 96):
        set_(max_num_seqs=value)
    for other in ({"max_num_seqs": 97}, {"max_num_seqs": 96, "batching": "static"}):
        with pytest.raises(ApprovalError):
            set_(**other)
    assert desk.people.let_release("try abc", allowed, "anna", "again")["id"] == told["id"]
    desk.people.withdraw(told["id"], "anna", "rolled back")
    with pytest.raises(ApprovalError):
        set_(max_num_seqs=96)
    with pytest.raises(InvalidControls, match="slots cannot be changed"):
        desk.people.let_release("try abc", {"slots": [1]}, "anna", "x")


def test_nobody_lets_through_what_was_asked_for_with_one_person_only(desk: Desk) -> None:
    """``needed`` may ask for more persons than the server does, not for fewer."""
    assert desk.people.open("release", "c7", "anna", "x", needed=1)["needed"] == 2


def test_a_change_is_made_with_the_limits_of_tenants(desk: Desk) -> None:
    told = asked(desk, tenants={"acme": {"weight": 2.0}})
    desk.people.approve(told["id"], "bert", "right")
    assert desk.now.tenants["acme"].weight == 2.0
    again = ControlChange(values={"tenants": desk.now.tenants}, set_by=SetBy.PERSON, who="anna")
    assert desk.people.needs_second(again.values) == ["tenants"]
