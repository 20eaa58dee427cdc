"""What actions set, and that a rule's change holds, ends and leaves alone what a person has set."""

import msgspec
import pytest

from ekiden.config import Config, ConfigError, LimitsConfig, SchedulerConfig, check_controls, controls_of
from ekiden.guardrails.actions import ACTIONS, OUTSIDE, Surroundings, change_for
from ekiden.guardrails.force import Held, change_of, held_after, renewal
from ekiden.guardrails.ladder import Because, Step
from ekiden.guardrails.readings import Objectives, Reading
from ekiden.state.controls import ControlChange, Controls, ControlsInForce, InvalidControls, SetBy, TenantLimits

BLOCK = 32
CONTROLS = controls_of(Config())
AROUND = Surroundings(Objectives(), CONTROLS, BLOCK)
SEEN = Reading(
    value=9.0, subject="flood", numbers={"joined_per_second": 4.0, "waiting": 50.0, "fair_tokens_per_second": 80.0}
)


def check(controls: Controls) -> None:
    try:
        check_controls(controls, BLOCK)
    except ConfigError as error:
        raise InvalidControls(str(error)) from None


def in_force() -> ControlsInForce:
    return ControlsInForce(CONTROLS, check)


def taken(before: int, after: int, *actions: str) -> Step:
    return Step(
        rule="tried", owner="anna", before=before, after=after, actions=actions, because=Because.OVER, at=1.0,
        reading=SEEN, why="queue_age is 9 s",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("action", "values"),
    [
        ("shrink_batch", {"max_num_seqs": 32}),
        ("shed_newest", {"max_num_queued_reqs": 10}),
        ("order_fair", {"scheduling_policy": "fair"}),
        ("fall_back", {"batching": "static"}),
        ("drain", {"draining": True}),
        ("tighten_prefill", {"max_concurrent_prefills": 4, "max_num_batched_tokens": 288}),
        (
            "shed_tenant",
            {"tenants": {"flood": TenantLimits(tokens_per_second=80.0, burst_tokens=80.0, max_num_queued_reqs=32.0)}},
        ),
    ],
)
def test_an_action_sets(action: str, values: dict[str, object]) -> None:
    assert change_for(action, CONTROLS, SEEN, AROUND) == values


def test_an_action_has_no_end_but_a_floor() -> None:
    """However often each is applied, the controls can work, and in the end it changes nothing more."""
    for action, known in ACTIONS.items():
        controls, times = CONTROLS, 0
        while values := change_for(action, controls, SEEN, AROUND):
            controls = msgspec.structs.replace(controls, **values)
            check(controls)
            times += 1
            assert times <= 12, action
        assert (times == 0) == (known.make is None or action == "go_back"), action
    assert {"page", "require_acknowledgement", "restart", "stop"} == OUTSIDE


def test_the_simpler_policies_come_one_after_the_other() -> None:
    static = msgspec.structs.replace(CONTROLS, batching="static")
    assert change_for("fall_back", static, SEEN) == {"batching": "sequential"}
    assert change_for("fall_back", msgspec.structs.replace(CONTROLS, batching="sequential"), SEEN) is None


def test_going_back_names_all_that_differs_and_nothing_else() -> None:
    changed = msgspec.structs.replace(
        CONTROLS, max_num_seqs=7, batching="window", guard="words", draining=True, epoch=9
    )
    assert change_for("go_back", changed, SEEN, AROUND) == {"max_num_seqs": 64, "batching": "continuous"}
    assert change_for("go_back", changed, SEEN) is None, "nothing is known to be good"


def test_a_tenant_keeps_limits_that_are_stricter() -> None:
    own = TenantLimits(weight=2.0, tokens_per_second=5.0, max_num_queued_reqs=1.0)
    controls = msgspec.structs.replace(CONTROLS, tenants={"flood": own, "lone": TenantLimits(weight=3.0)})
    values = change_for("shed_tenant", controls, SEEN, AROUND)
    assert values == {
        "tenants": {"flood": msgspec.structs.replace(own, burst_tokens=5.0), "lone": TenantLimits(weight=3.0)}
    }
    assert change_for("shed_tenant", controls, Reading(value=9.0), AROUND) is None


def test_a_rule_has_one_change_in_force_through_all_its_steps() -> None:
    controls, held = in_force(), dict[str, tuple[dict[str, object], ...]]()

    def go(step: Step, now: float) -> None:
        nonlocal held
        held = held_after(held, step, controls.now, AROUND)  # type: ignore[arg-type, assignment]
        controls.apply(change_of("tried", held, guard=f"rung {step.after}", why=step.why, expires_at=now + 10.0), now)  # type: ignore[arg-type]

    go(taken(0, 1, "shrink_batch"), 1.0)
    go(taken(1, 2, "order_fair"), 2.0)
    go(taken(2, 3, "shrink_batch"), 3.0)
    go(taken(3, 4, "page"), 4.0)
    assert (controls.now.max_num_seqs, controls.now.scheduling_policy, controls.now.guard) == (16, "fair", "rung 4")
    (change,) = controls.state.changes
    assert (change.who, change.set_by, change.why) == ("guard:tried", SetBy.SOFTWARE_RULE, "queue_age is 9 s")
    go(taken(4, 2, "page", "shrink_batch"), 5.0)
    assert (controls.now.max_num_seqs, controls.now.scheduling_policy) == (32, "fair")
    go(taken(2, 0, "order_fair", "shrink_batch"), 6.0)
    assert (controls.now.max_num_seqs, controls.now.scheduling_policy, controls.now.guard) == (64, "fcfs", "rung 0")
    controls.expire(16.0)
    assert msgspec.structs.replace(controls.now, epoch=0) == CONTROLS


def test_what_a_step_down_gives_back_is_recorded_as_its_doing() -> None:
    controls = in_force()
    held: Held = {"tried": ({"max_num_seqs": 8},)}
    controls.apply(change_of("tried", held, guard="on", why="up", expires_at=9.0), 0.0)
    fields = controls.apply(change_of("tried", {}, guard="", why="down", expires_at=9.0), 1.0)
    assert [(f.name, f.old, f.new, f.change.who) for f in fields] == [
        ("guard", "on", "", "guard:tried"),
        ("max_num_seqs", 8, 64, "guard:tried"),
    ]


def test_a_renewal_leaves_what_a_person_has_set_since() -> None:
    controls = in_force()
    held: Held = {"tried": ({"max_num_seqs": 8, "batching": "static"},)}
    controls.apply(change_of("tried", held, guard="on", why="up", expires_at=9.0), 0.0)
    person = ControlChange(values={"max_num_seqs": 20}, set_by=SetBy.PERSON, who="ben", expires_at=100.0)
    controls.apply(person, 1.0)
    again = renewal(controls.state, "tried", guard="on", expires_at=20.0)
    assert again is not None
    controls.apply(again, 2.0)
    assert (controls.now.max_num_seqs, controls.now.batching) == (20, "static")
    assert len(controls.state.changes) == 2
    controls.expire(20.0)
    assert (controls.now.max_num_seqs, controls.now.batching, controls.now.guard) == (20, "continuous", "")
    assert renewal(controls.state, "tried", guard="on", expires_at=30.0) is None


def test_the_longest_line_is_what_joins_in_half_the_objective() -> None:
    slow = Reading(value=9.0, numbers={"joined_per_second": 0.1})
    assert change_for("shed_newest", CONTROLS, slow, AROUND) == {"max_num_queued_reqs": 1}
    unknown = Reading(value=9.0)
    assert change_for("shed_newest", CONTROLS, unknown, AROUND) == {"max_num_queued_reqs": 64}
    tight = controls_of(Config(limits=LimitsConfig(max_num_queued_reqs=3), scheduler=SchedulerConfig()))
    assert change_for("shed_newest", tight, SEEN, AROUND) is None
