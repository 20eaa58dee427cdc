"""Worst cases: their severities and order, one by one, with a command that the CLI takes."""

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from ekiden.cli.explain import command
from ekiden.evaluation.analysis.failures import OTHER_TOKENS, SEVERITIES, severity_of, worst_cases
from ekiden.evaluation.results import Answered
from ekiden.ledger.retention import SUFFIX
from ekiden.measure.figures import RequestRecord
from tests.unit.evaluation.analysis.made import plan
from tests.unit.evaluation.analysis.served import run


def answered(name, *times, failure=None, tokens=(1, 2), alone=None, end=0.0):
    record = RequestRecord(intended=0.0, end=end, event_times=list(times), output_tokens=len(times), failure=failure)
    return Answered(id=name, record=record, token_ids=tokens, output_tokens=2, slowest_alone=alone)


def run_of(arm, *results, block=0, position=0, run_id=None, void=None):
    return run(results, arm=arm, block=block, position=position, run_id=run_id, void=void)


GOOD = (0.2, 0.25)


def seen(cases):
    return [(case.severity, case.arm, case.request_id, case.kind) for case in cases]


@pytest.mark.parametrize(
    ("kind", "severity"),
    [
        ("refused_queue_full_requests", "lost"), ("timeout", "lost"), ("deadline", "lost"), ("unfinished", "lost"),
        ("wrong_length", "wrong"), ("malformed", "wrong"), (OTHER_TOKENS, "wrong"), ("late_first_token", "late"),
        ("late_tokens", "late"), ("slowdown", "slow"), ("largest_gap", "slow"),
    ],
)  # fmt: skip
def test_severities(kind, severity):
    assert severity_of(kind) == severity


def test_lost_comes_before_wrong_before_late_before_slow():
    ours = run_of(
        "continuous",
        answered("late", 3.0, 3.05),
        answered("dragging", 0.2, 0.9),
        answered("short", 0.2, failure="wrong_length"),
        answered("gone", failure="timeout", tokens=None, end=4.0),
        answered("fine", *GOOD, alone=0.05),
    )
    cases = worst_cases(plan(), [ours], None)
    assert seen(cases) == [
        ("lost", "continuous", "gone", "timeout"),
        ("wrong", "continuous", "short", "wrong_length"),
        ("late", "continuous", "late", "late_first_token"),
        ("late", "continuous", "dragging", "late_tokens"),
        ("slow", "continuous", "fine", "largest_gap"),
        ("slow", "continuous", "fine", "slowdown"),
    ]
    assert [case.value for case in cases] == pytest.approx([4.0, None, 3.0, 0.7, 0.05, 5.0])
    assert cases[0].what == "timeout after 4.00 s; 0 of 2 tokens had come"
    assert "許容は 1 秒" in cases[2].whats["ja"]
    assert [SEVERITIES.index(case.severity) for case in cases] == sorted(SEVERITIES.index(c.severity) for c in cases)


def test_of_many_alike_the_worst_two_requests_are_listed_each_once_and_the_others_counted():
    first = run_of("continuous", *(answered(f"r{n}", 2.0 + n, 2.1 + n) for n in range(5)))
    again = run_of("continuous", *(answered(f"r{n}", 2.5 + n, 2.6 + n) for n in range(5)), position=3)
    cases = worst_cases(plan(), [first, again], None)
    assert [(case.request_id, case.value) for case in cases] == [("r4", 6.5), ("r3", 5.5)]
    assert all("one of 10 of this kind" in case.what for case in cases)


def test_tokens_that_differ_from_any_arm_on_the_same_engine_are_wrong():
    runs = [
        run_of("continuous", answered("a", *GOOD), answered("b", *GOOD, tokens=(1, 9))),
        run_of("static", answered("a", *GOOD), answered("b", *GOOD)),
        run_of("window", answered("a", *GOOD, tokens=(1, 2, 3)), answered("b", *GOOD)),
    ]
    wrong = [case for case in worst_cases(plan(), runs, None) if case.severity == "wrong"]
    assert seen(wrong) == [
        ("wrong", "continuous", "b", OTHER_TOKENS),
        ("wrong", "continuous", "a", OTHER_TOKENS),
    ]
    assert [case.value for case in wrong] == [2.0, 3.0]
    assert wrong[0].what == "the tokens are other than those of static from token 2 on; one of 2 of this kind"
    # The same id in another block is another request.
    other_block = [runs[0], run_of("static", answered("b", *GOOD), block=1)]
    assert not [case for case in worst_cases(plan(), other_block, None) if case.severity == "wrong"]


def test_void_runs_are_left_out():
    assert worst_cases(plan(), [run_of("continuous", answered("x", failure="timeout"), void="late load")], None) == []


def test_the_command_is_given_where_the_ledger_is_and_the_cli_takes_it(tmp_path: Path):
    folder = tmp_path / "my ledgers"
    folder.mkdir()
    (folder / f"kept{SUFFIX}").touch()
    runs = [
        run_of("continuous", answered("a", failure="timeout"), run_id="kept"),
        run_of("static", answered("a", failure="timeout"), run_id="deleted"),
    ]
    kept, deleted = worst_cases(plan(), runs, folder)
    assert deleted.explain is None
    assert kept.explain is not None
    program, name, *arguments = shlex.split(kept.explain)
    assert (program, name, arguments) == ("ekiden", "explain", ["a", "--run", "kept", "--ledger-dir", str(folder)])
    # The file is empty, so the command gets as far as reading it.
    result = CliRunner().invoke(command, arguments)
    assert "is not a ledger" in str(result.exception or result.output)
    assert all(case.explain is None for case in worst_cases(plan(), runs, None))
