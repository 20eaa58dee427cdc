"""The guard's rules are read again: what is the same goes on, the rest lets go, and faults change nothing."""

from pathlib import Path
from typing import Any

import msgspec

from ekiden.config import Config, GuardConfig
from ekiden.guard.assemble import read_rules
from ekiden.guardrails.readings import Objectives
from ekiden.guardrails.rules import Rule, Rules
from tests.unit.guard.desk import CONFIGURED, Desk, rule

SLOTS = CONFIGURED.max_num_seqs
SLOW = rule("slow", "shrink_batch", "require_acknowledgement")
SWAPS = rule("swaps", "order_fair", signal="swap_rate")
HARM = {"itl_p99": 0.5, "swap_rate": 1.0}


def reread(desk: Desk, *rules: Rule, **more: Any) -> None:
    desk.guard.reread(lambda: Rules(rules=rules, **more), "SIGHUP")


def harmed() -> Desk:
    """Both rules hold something."""
    desk = Desk(SLOW, SWAPS)
    desk.looks(9, **HARM)
    assert (desk.rung("slow"), desk.rung("swaps")) == (2, 1)
    assert (desk.now.max_num_seqs, desk.now.scheduling_policy) == (SLOTS // 2, "fair")
    return desk


def test_a_rule_that_is_the_same_goes_on_and_one_that_is_gone_lets_go_at_once() -> None:
    desk = harmed()
    state, waits = desk.guard.kept.ladder["slow"], desk.guard.kept.approvals
    reread(desk, SLOW, rule("queue", "page", signal="queue_age"))
    assert msgspec.structs.replace(desk.guard.kept.ladder["slow"], seen_at=None) == msgspec.structs.replace(
        state, seen_at=None
    )
    assert desk.guard.kept.approvals == waits, "the acknowledgement is still asked for"
    assert set(desk.guard.kept.ladder) == {"slow", "queue"}
    assert (desk.now.max_num_seqs, desk.now.scheduling_policy) == (SLOTS // 2, "fcfs")
    assert "guard:swaps lowered from rung 1 to 0: its rule was changed or removed" in desk.told
    assert "SIGHUP the rules were read again: added queue; removed swaps" in desk.told
    desk.looks(100, **HARM)
    assert (desk.now.max_num_seqs, desk.now.scheduling_policy) == (SLOTS // 2, "fcfs"), "it is renewed"
    desk.looks(30, itl_p99=0.0, queue_age=9.0)
    assert desk.rung("queue") == 1


def test_a_rule_that_was_changed_begins_on_the_ground() -> None:
    desk = harmed()
    reread(desk, msgspec.structs.replace(SLOW, threshold=0.8, clear_threshold=0.4), SWAPS)
    assert (desk.rung("slow"), desk.now.max_num_seqs, desk.rung("swaps")) == (0, SLOTS, 1)
    assert desk.people.view()["approvals"] == [], "nothing is left to acknowledge"
    desk.looks(20, **HARM)
    assert desk.rung("slow") == 0, "0.5 is under the new threshold"
    desk.looks(9, **{**HARM, "itl_p99": 0.9})
    assert desk.rung("slow") == 2


def test_a_persons_override_of_a_changed_rule_stays() -> None:
    desk = harmed()
    desk.people.override("slow", 60.0, "anna", "a load test")
    reread(desk, msgspec.structs.replace(SLOW, threshold=0.3))
    desk.looks(50, **HARM)
    assert desk.rung("slow") == 0
    desk.looks(20, **HARM)
    assert desk.rung("slow") > 0


def test_objectives_are_read_again_for_signals_and_actions() -> None:
    desk = Desk(SLOW)
    objectives = Objectives(ttft_seconds=1.0)
    reread(desk, SLOW, objectives=objectives)
    desk.looks(1)
    assert (desk.sense.objectives, desk.guard.around.objectives) == (objectives, objectives)
    assert "changed the objectives" in desk.guard.kept.decisions[-1].why


def test_faults_change_nothing_and_are_told(tmp_path: Path) -> None:
    desk, path = harmed(), tmp_path / "rules.toml"
    path.write_text('[[rules]]\nname = "slow"\nsignal = "itl_p98"\n')
    config = Config(guard=GuardConfig(guard="act", guard_rules=str(path)))
    desk.guard.reread(lambda: read_rules(config), "SIGHUP")
    assert desk.guard.rules == Rules(rules=(SLOW, SWAPS))
    (decision,) = [each for each in desk.guard.kept.decisions if each.who == "SIGHUP"]
    assert decision.what == "the rules stay as they were"
    assert str(path) in decision.why
    assert "signal is 'itl_p98'; it must be one of" in decision.why
    assert desk.guard.kept.unrecorded == []
    desk.looks(60, **HARM)
    assert (desk.now.max_num_seqs, desk.now.scheduling_policy) == (SLOTS // 2, "fair")


def test_the_state_is_kept_for_the_rules_that_hold(tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    desk = Desk(SLOW, SWAPS, path=path)
    desk.looks(9, **HARM)
    reread(desk, SWAPS)
    again = Desk(SWAPS, path=path, clock=desk.clock)
    assert set(again.guard.kept.ladder) == {"swaps"}
    again.looks(1, **HARM)
    assert (again.now.max_num_seqs, again.now.scheduling_policy) == (SLOTS, "fair")


def test_a_guard_that_is_off_has_no_rules_to_read() -> None:
    desk = Desk(mode="off")
    reread(desk, SLOW)
    assert (desk.guard.rules.rules, desk.guard.kept.decisions) == ((), [])
