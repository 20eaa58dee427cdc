"""What would have been: against worlds in which the other policy was really run."""

from pathlib import Path
from typing import Any

import pytest

from ekiden.config import ConfigError
from ekiden.evidence.what_if import WhatIf, what_if
from tests.unit.evidence.directed import Directed
from tests.unit.evidence.test_replay import Oracle


def served(**settings: Any) -> Directed:
    """A burst of short answers behind a few long ones. None comes at the very moment at which a turn begins."""
    world = Directed(**settings)
    for number in range(24):
        world.submit(f"r{number}", prompt=8 + number % 5, output=40 if number % 4 == 0 else 6)
        world.wait(0.001)
        world.step(2)
    world.run()
    return world


def asked(folder: Path, world: Directed, **changes: Any) -> WhatIf:
    folder.mkdir(exist_ok=True)
    with world.stored(folder) as reader:
        return what_if(reader, changes)


def test_the_recorded_policy_is_reproduced(tmp_path: Path) -> None:
    told = asked(tmp_path, served(), max_num_seqs=4)
    assert told.same == told.other
    assert told.error < 0.05
    assert told.step_error < 0.05
    assert told.unknown_lengths == 0
    assert told.recorded.finished == told.same.finished == 24


def test_guesses_are_as_right_as_they_were(tmp_path: Path) -> None:
    told = asked(tmp_path, served(drafter=Oracle()), num_speculative_tokens=0)
    assert told.error < 0.35
    assert told.other.e2e_p99 > 1.5 * told.same.e2e_p99, "without them answers take longer"


def test_another_policy_is_predicted_as_it_really_runs(tmp_path: Path) -> None:
    """Predicted from the continuous run, compared with the static run itself."""
    told = asked(tmp_path, served(batching="continuous"), batching="static")
    real = asked(tmp_path / "static", served(batching="static")).recorded
    assert told.other.e2e_p99 == pytest.approx(real.e2e_p99, rel=0.1)
    assert told.other.e2e_p50 == pytest.approx(real.e2e_p50, rel=0.2)
    assert told.other.e2e_p99 > 1.2 * told.recorded.e2e_p99


def test_more_slots_and_a_smaller_pool(tmp_path: Path) -> None:
    world = served(max_num_seqs=2)
    with world.stored(tmp_path) as reader:
        assert what_if(reader, {"max_num_seqs": 16}).other.ttft_p99 < 0.5 * what_if(reader, {}).other.ttft_p99
        crowded = what_if(reader, {}, num_blocks=4)
    assert crowded.other.e2e_p99 >= crowded.same.e2e_p99


def test_refused_and_aborted_requests_are_offered_again(tmp_path: Path) -> None:
    world = Directed(num_blocks=20)
    world.submit("fine", output=10)
    world.submit("impossible", prompt=400)
    world.submit("left", output=500, prompt=10, sampling={"max_tokens": 200})
    world.step(12)
    world.core.abort("left")
    world.run()
    told = asked(tmp_path, world)
    assert (told.recorded.finished, told.recorded.refused, told.recorded.cut) == (1, 1, 1)
    assert told.unknown_lengths == 2
    assert told.same.refused == 1


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens is 10"):
        asked(tmp_path, served(), max_num_batched_tokens=10)
