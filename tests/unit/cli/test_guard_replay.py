"""The command that tries the guard's rules on a recorded run."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ekiden.cli.guard_replay import command
from tests.unit.evidence.directed import Directed

RULES = """
[objectives]
ttft_seconds = 1.0
tpot_seconds = 0.1

[[rules]]
name = "queue"
signal = "queue_age"
threshold = 0.5
of = "ttft_seconds"
clear_threshold = 0.1
for_seconds = 0
actions = ["page"]
step_seconds = 5
cooldown_seconds = 5
owner = "anna"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run in which requests wait longer and longer."""
    world = Directed(max_num_seqs=1)
    for number in range(120):
        world.submit(f"r{number}", output=12)
    world.run()
    world.stored(tmp_path).close()
    (tmp_path / "rules.toml").write_text(RULES)
    return tmp_path


def test_it_tells_when_each_rule_would_have_fired_and_how_long_before_the_miss(folder: Path) -> None:
    arguments = ["--ledger-dir", str(folder), "--guard-rules", str(folder / "rules.toml")]
    told = json.loads(CliRunner().invoke(command, [*arguments, "--json"]).output)
    (rule,) = told["rules"]
    assert (rule["rule"], rule["owner"], rule["fired_at"]) == ("queue", "anna", 1.0)
    assert told["misses"]["offered"] == 120
    assert told["misses"]["allowed"] == 6
    assert told["missed_at"] == told["misses"]["times"][6]
    assert rule["lead_seconds"] == pytest.approx(told["missed_at"] - 1.0)
    assert [taken["after"] for taken in rule["steps"]][:1] == [1]
    shown = CliRunner().invoke(command, arguments).output
    assert "The objective was missed at" in shown
    assert "queue_age is 1 s, over 0.5" in " ".join(shown.split())
