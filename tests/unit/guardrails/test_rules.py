"""Rules as a file: what is read, and that a file with faults is refused with all of them."""

from pathlib import Path

import pytest

from ekiden.guardrails.actions import ACTIONS
from ekiden.guardrails.readings import SIGNALS
from ekiden.guardrails.rules import RulesError, load_rules, parse_rules

ONE = """
[objectives]
ttft_seconds = 4.0

[[rules]]
name = "queue"
signal = "predicted_ttft_p90"
threshold = 0.5
of = "ttft_seconds"
clear_threshold = 0.25
for_seconds = 3
actions = ["shed_newest", "page"]
step_seconds = 10
cooldown_seconds = 20
owner = "anna"
"""


def test_a_threshold_is_a_share_of_the_objective_that_it_names() -> None:
    rules = parse_rules(ONE)
    (rule,) = rules.rules
    assert (rule.limit, rule.clear_limit) == (2.0, 1.0)
    assert rules.objectives.tpot_seconds == 0.25, "the default"
    assert rule.is_over(2.1)
    assert not rule.is_over(2.0)
    assert rule.is_clear(1.0)
    assert not rule.is_clear(1.1)


def test_the_rules_of_the_package_can_be_followed_and_have_owners() -> None:
    rules = load_rules(None)
    assert len(rules.rules) == 10
    assert all(rule.owner and rule.actions for rule in rules.rules)
    assert {rule.name for rule in rules.rules if "page" in rule.actions} == {rule.name for rule in rules.rules}


def test_every_signal_says_how_it_is_measured() -> None:
    assert all(signal.formula and signal.unit for signal in SIGNALS.values())
    assert all(action.words and action.way_down for action in ACTIONS.values())


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("ttft_seconds = 4.0", "ttft = 4.0", "objectives has no setting 'ttft'; it may have ttft_seconds"),
        ("ttft_seconds = 4.0", "ttft_seconds = 0", "objectives.ttft_seconds is 0.0; it must be over 0"),
        ("ttft_seconds = 4.0", "attainment = 1.0", "objectives.attainment is 1.0; it must be between 0 and 1"),
        ('name = "queue"', 'name = "Queue up"', "name is 'Queue up'; it must be 1 to 64 of a-z, 0-9 and -"),
        ('signal = "predicted_ttft_p90"', 'signal = "ttft"', "signal is 'ttft'; it must be one of queue_age"),
        ("threshold = 0.5", "threshold = nan", "threshold is nan"),
        ("clear_threshold = 0.25", "clear_threshold = 0.5", "it must be under the threshold"),
        ("clear_threshold = 0.25", "", "has no clear_threshold; give it"),
        ("for_seconds = 3", "for_seconds = -1", "for_seconds is -1.0; it must be at least 0"),
        ("step_seconds = 10", "step_seconds = 0", "step_seconds is 0.0; it must be over 0"),
        ("cooldown_seconds = 20", 'cooldown_seconds = "20"', "cooldown_seconds is '20'"),
        ('"page"]', '"fax"]', "actions has 'fax', which is none of tighten_prefill"),
        ('["shed_newest", "page"]', "[]", "actions is (); give between 1 and 16"),
        ('owner = "anna"', 'owner = " "', "name whom it belongs to"),
        ('of = "ttft_seconds"', 'of = "e2e"', "of is 'e2e'; it must be one of ttft_seconds"),
        ('owner = "anna"', 'owner = "anna"\nunit = 2.0', "has no setting 'unit'"),
        (
            'signal = "predicted_ttft_p90"',
            'signal = "kv_used"',
            "shed_newest needs a signal that gives joined_per_second",
        ),
        ("[objectives]", "[guard]", "a table 'guard', which is none of objectives, rules"),
    ],
)
def test_a_fault_is_named_with_its_place(old: str, new: str, fault: str) -> None:
    assert old in ONE
    with pytest.raises(RulesError) as found:
        parse_rules(ONE.replace(old, new))
    assert fault in str(found.value)


def test_all_faults_are_named_at_once_and_names_are_unique() -> None:
    with pytest.raises(RulesError) as found:
        parse_rules(ONE.replace("for_seconds = 3", "for_seconds = -3").replace('"anna"', '""'))
    assert len(found.value.faults) == 2
    with pytest.raises(RulesError, match="rule 'queue' is there twice"):
        parse_rules(ONE + ONE.split("4.0")[1])
    with pytest.raises(RulesError, match="it has 0 rules"):
        parse_rules("")
    with pytest.raises(RulesError, match="no valid TOML"):
        parse_rules("[[rules")


def test_a_file_that_cannot_be_read_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(RulesError, match=r"guard_rules .*none\.toml: it cannot be read: No such file"):
        load_rules(str(tmp_path / "none.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(RulesError, match="byte 0 is no UTF-8"):
        load_rules(str(tmp_path / "bytes.toml"))
    (tmp_path / "own.toml").write_text(ONE)
    assert load_rules(str(tmp_path / "own.toml")).named("queue").owner == "anna"
