"""The running guard over controls in memory: what is decided comes into force, into the ledger, and out again."""

from pathlib import Path

import pytest

from ekiden.guard.approvals import ApprovalError
from ekiden.guard.holding import LEASE_SECONDS
from ekiden.guard.runtime import MAX_POLL_SECONDS, POLL_SECONDS
from ekiden.guardrails.ladder import STALE_SECONDS
from ekiden.state.controls import SetBy
from tests.unit.guard.desk import CONFIGURED, Clock, Desk, rule

SLOW, FAST = {"itl_p99": 0.5}, {"itl_p99": 0.01}
SHRINK = rule("slow", "shrink_batch", "shrink_batch", "page")
SLOTS = CONFIGURED.max_num_seqs


def test_harm_raises_rungs_that_are_recorded_with_their_evidence_and_come_down_when_it_is_over() -> None:
    desk = Desk(SHRINK)
    desk.looks(2, **SLOW)
    assert (desk.rung("slow"), desk.now.max_num_seqs) == (0, SLOTS)
    desk.looks(1, **SLOW)
    assert (desk.rung("slow"), desk.now.max_num_seqs) == (1, SLOTS // 2)
    (change,) = desk.hands.recorded
    assert (change.who, change.set_by, change.expires_at) == (
        "guard:slow", SetBy.SOFTWARE_RULE, desk.clock.now + LEASE_SECONDS,
    )  # fmt: skip
    assert "itl_p99 is 0.5 s, over 0.2 for 2 s: seen 0.5" in change.why
    assert desk.now.guard == "slow: shrink_batch"
    desk.looks(10, **SLOW)
    assert (desk.rung("slow"), desk.now.max_num_seqs) == (3, SLOTS // 4)
    assert [page.rule for page in desk.channel.taken] == ["slow"]
    desk.looks(6, **FAST)
    assert desk.rung("slow") == 2
    assert desk.now.max_num_seqs == SLOTS // 4, "the page held nothing"
    desk.looks(5, **FAST)
    assert desk.now.max_num_seqs == SLOTS // 2
    desk.looks(5, **FAST)
    assert (desk.rung("slow"), desk.now.max_num_seqs, desk.now.guard) == (0, SLOTS, "")
    assert desk.guard.kept.held == {}
    assert desk.guard.steps_total == 6
    assert sum("raised" in told for told in desk.told) == sum("lowered" in told for told in desk.told) == 3


def test_a_rung_in_force_is_renewed_and_ends_by_itself_when_the_guard_does() -> None:
    desk = Desk(rule("slow", "shrink_batch"))
    desk.looks(3, **SLOW)
    desk.looks(4 * LEASE_SECONDS, itl_p99=0.15)
    assert desk.now.max_num_seqs == SLOTS // 2
    renewals = sum("still in force" in told for told in desk.told)
    assert 8 <= renewals <= 4 * LEASE_SECONDS / (LEASE_SECONDS - 20.0) + 1
    assert len(desk.hands.controls().changes) == 1, "renewals do not pile up"
    desk.clock.now += LEASE_SECONDS + 1  # the guard is gone
    assert desk.now.max_num_seqs == SLOTS


def test_two_rules_that_set_one_field_do_not_take_turns() -> None:
    desk = Desk(rule("slow", "shrink_batch"), rule("swaps", "shrink_batch", signal="swap_rate"))
    desk.looks(3, **SLOW, swap_rate=0.0)
    desk.looks(3, **SLOW, swap_rate=1.0)
    assert desk.now.max_num_seqs == SLOTS // 4, "the later one halves what the earlier one left"
    seen = set()
    for _ in range(40):
        desk.looks(1, **SLOW, swap_rate=1.0)
        seen.add(desk.now.max_num_seqs)
    assert seen == {SLOTS // 4}
    desk.looks(6, **SLOW, swap_rate=0.0)
    assert desk.now.max_num_seqs == SLOTS // 2, "the earlier rule's value is in force again"


@pytest.mark.parametrize("seconds", [None, 600.0])
def test_what_a_person_sets_after_a_rung_stands(seconds: float | None) -> None:
    desk = Desk(rule("slow", "shrink_batch", "tighten_prefill", step_seconds=60.0))
    desk.looks(3, **SLOW)
    desk.hands.person_sets(seconds, max_num_seqs=48)
    desk.looks(50, **SLOW)
    assert desk.now.max_num_seqs == 48
    assert desk.guard.kept.given_up == {"slow": ("max_num_seqs",)}
    assert sum("gives way" in told for told in desk.told) == 1
    desk.looks(20, **SLOW)
    assert desk.rung("slow") == 2
    assert desk.now.max_concurrent_prefills == CONFIGURED.max_concurrent_prefills // 2, "the next rung still works"
    assert desk.now.max_num_seqs == 48
    desk.looks(200, **FAST)
    assert (desk.rung("slow"), desk.now.max_num_seqs, desk.guard.kept.given_up) == (0, 48, {})
    assert desk.now.max_concurrent_prefills == CONFIGURED.max_concurrent_prefills


def test_a_change_that_a_person_made_before_is_overruled_and_is_there_again_afterwards() -> None:
    desk = Desk(rule("slow", "shrink_batch"))
    desk.hands.person_sets(max_num_seqs=20)
    desk.looks(3, **SLOW)
    assert desk.now.max_num_seqs == 10
    desk.looks(20, **FAST)
    assert desk.now.max_num_seqs == 20


def test_watching_changes_nothing_and_records_and_pages_what_it_would_have_done() -> None:
    desk = Desk(rule("slow", "shrink_batch", "page", "restart", "stop"), mode="watch")
    desk.looks(30, **SLOW)
    assert desk.rung("slow") == 4
    assert desk.now.max_num_seqs == SLOTS
    assert (desk.hands.restarts, desk.stops) == ([], 0)
    assert "would have raised from rung 0 to 1 (shrink_batch)" in desk.told[0]
    assert [page.action for page in desk.channel.taken] == ["page (watch)", "stop (watch)"]
    assert desk.now.guard.startswith("watching only; slow")


def test_actions_outside_the_controls_are_done_once_each() -> None:
    desk = Desk(rule("stall", "restart", "stop", signal="step_stall"))
    desk.looks(60, step_stall=9.0)
    assert len(desk.hands.restarts) == 1
    assert "stall: step_stall is 9 s" in desk.hands.restarts[0]
    assert desk.stops == 1


def test_decisions_made_while_no_engine_answers_are_recorded_by_the_next_one() -> None:
    desk = Desk(SHRINK)
    desk.hands.dead = True
    desk.looks(20, **SLOW)
    assert (desk.rung("slow"), desk.hands.recorded) == (3, [])
    desk.hands.dead = False
    desk.looks(1, **SLOW)
    assert desk.now.max_num_seqs == SLOTS // 4
    rungs = [f"raised from rung {before} to {before + 1}" for before in range(3)]
    for text in rungs:
        (told,) = [told for told in desk.told if text in told]
        assert told.startswith("guard:slow")
    assert "while no engine could record it" in desk.told[0]
    assert desk.guard.kept.unrecorded == []


def test_a_restart_of_the_server_loses_no_decision_and_goes_on_where_it_was(tmp_path: Path) -> None:
    path, clock = tmp_path / "guard.json", Clock()
    first = Desk(SHRINK, path=path, clock=clock, failing=1000)
    first.hands.dead = True
    first.looks(20, **SLOW)
    assert not first.channel.taken
    clock.now += 60  # kill -9: nothing is said, and another process takes over
    second = Desk(SHRINK, path=path, clock=clock)
    assert second.rung("slow") == 3
    second.looks(1, **SLOW)
    assert second.now.max_num_seqs == SLOTS // 4
    assert sum("raised from rung" in told for told in second.told) == 3
    assert [page.key for page in second.channel.taken] == [second.channel.taken[0].key], "the page is sent, once"
    second.looks(60, **FAST)
    assert (second.rung("slow"), second.now.max_num_seqs) == (0, SLOTS)
    third = Desk(SHRINK, path=path, clock=clock)
    assert (third.rung("slow"), third.guard.kept.unrecorded, third.guard.pager.waiting()) == (0, [], [])


def test_a_rule_that_is_gone_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    Desk(SHRINK, path=path).looks(5, **SLOW)
    desk = Desk(rule("other", "page"), path=path)
    desk.looks(5, **SLOW)
    assert desk.now.max_num_seqs == SLOTS


def test_a_damaged_file_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "guard.json"
    path.write_text('{"ladder": [')
    desk = Desk(SHRINK, path=path)
    assert desk.rung("slow") == 0
    assert (tmp_path / "guard.json.damaged").exists()
    assert "put aside" in caplog.text


def test_a_look_that_fails_is_told_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(rule("slow", "shrink_batch"))
    desk.looks(3, **SLOW)
    desk.sense.faults = [RuntimeError("a signal divides by zero")] * 40
    for _ in range(35):
        desk.clock.now += 1.0
        desk.guard.look()
    assert desk.guard.failures_total == 35
    assert (desk.guard.state, desk.guard.failure) == ("failing", "RuntimeError: a signal divides by zero")
    assert caplog.text.count("could not look") == 1
    assert desk.now.max_num_seqs == SLOTS, "what nobody renews expires"
    desk.sense.faults.clear()
    desk.looks(1, **SLOW)
    assert (desk.guard.state, desk.now.max_num_seqs) == ("ok", SLOTS // 2)


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    desk = Desk(rule("slow", "shrink_batch"), path=tmp_path / "file" / "guard.json")
    desk.looks(3, **SLOW)
    assert desk.now.max_num_seqs == SLOTS // 2
    assert "cannot be kept over a restart" in caplog.text


def test_a_look_that_takes_long_is_followed_by_a_longer_pause_in_which_rules_still_fire() -> None:
    desk = Desk(SHRINK)
    used = iter([0.0, 0.002, 0.0, 0.01, 0.0, 9.0])
    desk.guard._cpu, desk.guard._cores = lambda: next(used), 1
    pauses = []
    for _ in range(3):
        desk.guard.look()
        pauses.append(desk.guard.pause_seconds)
    assert pauses == [POLL_SECONDS, 2.0, MAX_POLL_SECONDS]
    assert MAX_POLL_SECONDS < STALE_SECONDS


# --- persons


def test_an_acknowledgement_is_asked_for_and_given_by_name() -> None:
    desk = Desk(rule("slow", "shrink_batch", "require_acknowledgement"))
    desk.looks(9, **SLOW)
    (asked,) = desk.people.view()["approvals"]
    assert (asked["kind"], asked["subject"], asked["lacking"]) == ("acknowledge", "slow", 1)
    assert [page.action for page in desk.channel.taken] == ["require_acknowledgement (act)"]
    desk.looks(100, **FAST)
    assert desk.rung("slow") == 2, "it waits for a person"
    with pytest.raises(ApprovalError, match="cannot be refused"):
        desk.people.approve(asked["id"], "anna", "no", yes=False)
    desk.people.acknowledge("slow", "anna", "known, a batch job")
    (said,) = [change for change in desk.hands.recorded if change.set_by is SetBy.PERSON]
    assert (said.who, said.why) == ("anna", "slow: acknowledged: known, a batch job")
    desk.looks(30, **FAST)
    assert desk.rung("slow") == 0
    assert desk.people.view()["approvals"] == []
    with pytest.raises(ApprovalError, match="waits for no acknowledgement"):
        desk.people.acknowledge("slow", "anna", "again")
    with pytest.raises(ApprovalError, match="there is no rule 'fast'; the rules are slow"):
        desk.people.acknowledge("fast", "anna", "again")


def test_an_acknowledgement_that_comes_when_a_change_is_to_be_renewed_is_recorded_beside_it() -> None:
    desk = Desk(rule("slow", "shrink_batch", "require_acknowledgement"))
    desk.looks(9, **SLOW)
    desk.clock.now += LEASE_SECONDS / 2
    desk.people.acknowledge("slow", "anna", "seen")
    assert [told.split(":")[0] for told in desk.told[-2:]] == ["anna slow", "guard"]
    assert "still in force" in desk.told[-1]
    assert desk.guard.kept.unrecorded == []


def test_an_override_takes_a_rule_out_of_force_at_once_and_ends() -> None:
    desk = Desk(rule("slow", "shrink_batch", "require_acknowledgement"))
    desk.looks(20, **SLOW)
    desk.people.override("slow", 60.0, "anna", "a load test")
    assert (desk.rung("slow"), desk.now.max_num_seqs) == (0, SLOTS)
    assert "anna slow: overridden for 60 s: a load test" in desk.told
    assert desk.people.view()["approvals"] == [], "nothing waits for anybody any more"
    desk.looks(59, **SLOW)
    assert desk.rung("slow") == 0
    desk.looks(2, **SLOW)
    assert desk.rung("slow") == 1
    desk.people.override("slow", 600.0, "anna", "once more")
    desk.people.end_override("slow", "bert", "it is over")
    desk.looks(10, **SLOW)
    assert desk.rung("slow") > 0
    with pytest.raises(ApprovalError, match="is not overridden"):
        desk.people.end_override("slow", "bert", "it is over")


@pytest.mark.parametrize("seconds", [None, 30.0])
def test_a_pause_takes_everything_out_of_force_and_ends(seconds: float | None) -> None:
    desk = Desk(rule("slow", "shrink_batch"), rule("swaps", "order_fair", signal="swap_rate"))
    desk.looks(5, **SLOW, swap_rate=1.0)
    desk.people.pause(seconds, "anna", "maintenance")
    assert (desk.now.max_num_seqs, desk.now.scheduling_policy) == (SLOTS, "fcfs")
    assert desk.guard.state == "paused"
    desk.looks(25)
    assert desk.now.max_num_seqs == SLOTS
    if seconds is None:
        desk.people.resume("bert", "done")
        with pytest.raises(ApprovalError, match="is not paused"):
            desk.people.resume("bert", "done")
    desk.looks(20)
    assert (desk.now.max_num_seqs, desk.now.scheduling_policy) == (SLOTS // 2, "fair")


def test_two_persons_must_agree_where_two_are_asked_for() -> None:
    desk = Desk(rule("slow", "shrink_batch", "require_acknowledgement"), two_person=True)
    desk.looks(9, **SLOW)
    assert desk.people.acknowledge("slow", "anna", "seen")["lacking"] == 1
    with pytest.raises(ApprovalError, match="key of another name"):
        desk.people.acknowledge("slow", "anna", "seen twice")
    desk.looks(60, **FAST)
    assert desk.rung("slow") == 2
    assert desk.people.acknowledge("slow", "bert", "seen too")["state"] == "approved"
    desk.looks(30, **FAST)
    assert desk.rung("slow") == 0
    asked = desk.people.override("slow", 60.0, "anna", "a load test")
    assert (asked["state"], asked["lacking"]) == ("open", 1)
    desk.looks(9, **SLOW)
    assert desk.rung("slow") > 0, "one person is not enough"
    desk.people.approve(asked["id"], "bert", "right")
    assert desk.rung("slow") == 0
    assert any(told.startswith("bert slow: overridden for 60 s, asked for by anna") for told in desk.told)
    refused = desk.people.pause(None, "anna", "too many pages")
    assert desk.people.approve(refused["id"], "bert", "no", yes=False)["state"] == "refused"
    assert desk.guard.state == "ok"


def test_a_guard_that_is_off_keeps_approvals_of_others(tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    desk = Desk(SHRINK, mode="off", path=path)
    assert not path.exists()
    asked = desk.people.open("release", "canary-7", "anna", "promote", needed=2)
    assert asked == desk.people.open("release", "canary-7", "anna", "again"), "one that is open is the same"
    desk.people.approve(asked["id"], "anna", "fine")
    again = Desk(SHRINK, mode="off", path=path)
    assert again.people.approve(asked["id"], "bert", "fine")["state"] == "approved"
    with pytest.raises(ApprovalError, match="start with --guard act"):
        again.people.override("slow", 5.0, "anna", "x")
    withdrawn = again.people.open("release", "canary-8", "anna", "promote")
    assert again.people.withdraw(withdrawn["id"], "anna", "aborted")["state"] == "withdrawn"
