"""Tuning: the best combination is found, simulated first and then for real, and every trial is told."""

from typing import Any

import pytest

from ekiden.config import ConfigError
from ekiden.errors import UserError
from ekiden.evaluation.load.subject import Subject
from ekiden.evaluation.plan.model import Arm
from ekiden.evaluation.results import Answered, ArmRun
from ekiden.evaluation.tuning import trials_of, tune
from ekiden.evaluation.workloads.offer import Workload
from ekiden.measure.figures import RequestRecord
from tests.unit.evaluation.analysis.served import run
from tests.unit.evaluation.simulated_arms import OBJECTIVES, subject, workload


class Planted:
    """A subject that answers so many of ten requests well, the others too late; ``late`` of its runs are void first."""

    def __init__(self, good: int, first: float = 0.1, void: int = 0) -> None:
        self.good, self.first, self.void = good, first, void
        self.served = self.closed = 0

    def serve(self, workload: Workload, *, on_answer: Any = None) -> ArmRun:
        self.served += 1
        results = [
            Answered(
                id=str(number),
                record=RequestRecord(intended=0.0, event_times=[self.first if number < self.good else 99.0]),
            )
            for number in range(10)
        ]
        void = "late" if self.served <= self.void else None
        return run(results, seconds=5.0, arrival_seconds=5.0, void=void)

    def close(self) -> None:
        self.closed += 1


ARM = Arm(settings={"batching": "window"}, tune={"max_num_seqs": [4, 8, 16], "batch_window_ms": [10.0, 50.0]})


def test_the_planted_best_is_chosen_and_every_trial_told() -> None:
    made: list[Planted] = []

    def make(settings: dict[str, Any]) -> Subject:
        assert settings["batching"] == "window"
        best = settings["max_num_seqs"] == 8 and settings["batch_window_ms"] == 50.0
        made.append(Planted(9 if best else 4))
        return made[-1]

    told = tune(ARM, [workload(), workload()], make, OBJECTIVES, name="window")
    assert told.chosen == {"batching": "window", "max_num_seqs": 8, "batch_window_ms": 50.0}
    assert (told.arm, len(told.trials)) == ("window", 6)
    assert told.trials[3] == {
        "settings": {"max_num_seqs": 8, "batch_window_ms": 50.0},
        "where": "real",
        "goodput": 18 / 10.0,
        "attainment": 0.9,
        "ttft_p99": told.trials[3]["ttft_p99"],
    }
    assert [(each.served, each.closed) for each in made] == [(2, 1)] * 6


def test_of_equal_goodput_the_lower_p99_wins_and_then_the_first() -> None:
    arm = Arm(tune={"max_num_seqs": [1, 2, 3, 4]})
    firsts = {1: 0.3, 2: 0.2, 3: 0.2, 4: 0.4}
    told = tune(arm, [workload()], lambda s: Planted(10, firsts[s["max_num_seqs"]]), OBJECTIVES)
    assert told.chosen == {"max_num_seqs": 2}


def test_the_best_few_run_for_real_and_that_decides() -> None:
    arm, real = Arm(tune={"max_num_seqs": list(range(1, 9))}), []

    def on_engine(settings: dict[str, Any]) -> Subject:
        real.append(settings["max_num_seqs"])
        return Planted(10 - settings["max_num_seqs"])

    told = tune(
        arm, [workload()], on_engine, OBJECTIVES, simulated=lambda s: Planted(s["max_num_seqs"]), best=3, name="a"
    )
    assert real == [8, 7, 6]
    assert told.chosen == {"max_num_seqs": 6}
    assert [trial["where"] for trial in told.trials] == ["simulated"] * 8 + ["real"] * 3


def test_what_cannot_work_is_told_and_never_chosen() -> None:
    def make(settings: dict[str, Any]) -> Subject:
        if settings["max_num_seqs"] > 4:
            raise ConfigError(f"max_num_seqs is {settings['max_num_seqs']}; too many")
        return Planted(1)

    arm = Arm(tune={"max_num_seqs": [16, 4]})
    told = tune(arm, [workload()], make, OBJECTIVES)
    assert told.chosen == {"max_num_seqs": 4}
    assert told.trials[0]["why_not"] == "max_num_seqs is 16; too many"
    with pytest.raises(UserError, match="arm 'b': none of the 1 combinations in tune can be served: max_num_seqs"):
        tune(Arm(tune={"max_num_seqs": [16]}), [workload()], make, OBJECTIVES, name="b")


@pytest.mark.parametrize(("void", "served", "goodput"), [(1, 2, 2.0), (2, 2, None)])
def test_a_void_run_is_repeated_once(void: int, served: int, goodput: float | None) -> None:
    subjects = [Planted(10, void=void), Planted(1)]
    waiting = iter(subjects)
    told = tune(Arm(tune={"max_num_seqs": [1, 2]}), [workload()], lambda s: next(waiting), OBJECTIVES)
    assert subjects[0].served == served
    assert told.trials[0].get("goodput") == goodput
    assert told.chosen == {"max_num_seqs": 1 if goodput else 2}


def test_a_grid_that_is_too_large_is_sampled_by_seed() -> None:
    arm = Arm(tune={"max_num_seqs": list(range(100)), "batch_window_ms": list(range(10))})
    some, combinations = trials_of(arm, seed=1, most=20)
    assert (len(some), combinations) == (20, 1000)
    assert some == trials_of(arm, seed=1, most=20)[0]
    assert some != trials_of(arm, seed=2, most=20)[0]
    assert len({tuple(each.items()) for each in some}) == 20
    assert trials_of(Arm())[0] == [{}]
    with pytest.raises(UserError, match=r"tune.max_num_seqs has no values"):
        trials_of(Arm(tune={"max_num_seqs": []}))


def test_tuning_in_simulation_repeats_itself() -> None:
    arm = Arm(settings={"batching": "static"}, tune={"max_num_seqs": [1, 8]})
    told = [tune(arm, [workload(30, rate=10.0)], None, OBJECTIVES, simulated=subject, name="static") for _ in range(2)]
    assert told[0] == told[1]
    assert told[0].chosen["max_num_seqs"] == 8
    assert told[0].how.startswith("tried all 2 combinations on dev in simulated time")
