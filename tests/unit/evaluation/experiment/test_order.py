"""Who serves which block when."""

from collections import Counter
from itertools import pairwise

import msgspec
import pytest

from ekiden.evaluation.experiment.order import AGAIN, due_in
from ekiden.evaluation.experiment.serving import StoppedError, serve_all
from ekiden.evaluation.workloads.offer import Kind, Workload
from tests.unit.evaluation.analysis.served import run
from tests.unit.evaluation.plan.plans import document, parsed

PLAN = parsed(document())


def of_block(due, name, block):
    return [each.arm for each in due if each.workload.name == name and each.block == block]


def test_every_block_has_each_of_its_arms_twice_and_turns_round_in_the_middle():
    due = due_in(PLAN, "confirm")
    assert len({each.key for each in due}) == len(due)
    for spec in PLAN.workloads:
        serving = spec.arms or list(PLAN.arms)
        for block in range(spec.blocks or PLAN.confirm.blocks):
            arms = of_block(due, spec.name, block)
            assert arms == arms[::-1]
            assert Counter(arms) == dict.fromkeys(serving, 2)
    first = {tuple(of_block(due, "conversation", block)) for block in range(PLAN.confirm.blocks)}
    assert len(first) > 1, "the order of the arms is drawn for each block"


def test_the_order_follows_from_the_seed_alone():
    assert due_in(PLAN, "confirm") == due_in(PLAN, "confirm")
    other = msgspec.structs.replace(PLAN, confirm=msgspec.structs.replace(PLAN.confirm, seed=5))
    assert due_in(other, "confirm") != due_in(PLAN, "confirm")


def test_dev_has_the_candidate_against_itself_in_blocks_of_its_own():
    due = due_in(PLAN, "dev")
    again = {each.block for each in due if each.arm == AGAIN}
    assert again
    for block in again:
        arms = of_block(due, "conversation", block)
        assert Counter(arms) == {AGAIN: 2, "continuous": 2}


def test_workloads_on_the_same_engine_stay_together():
    made = document()
    made["workloads"][0]["engine"] = {"threads": 1}
    due = due_in(parsed(made), "confirm")
    changes = sum(a.workload.engine != b.workload.engine for a, b in pairwise(due))
    assert changes == 1


class Kept:
    def __init__(self):
        self.runs = []

    def finished(self):
        return []

    def keep(self, run):
        self.runs.append(run)

    def all_runs(self):
        return list(self.runs)


EMPTY = Workload(name="", kind=Kind.NORMAL, seconds=1.0, offers=(), made={}, sources={})


class Void:
    def serve(self, workload, *, on_answer=lambda: None):
        return run([], void="the generator came late")

    def close(self):
        pass


def test_too_many_void_runs_and_too_much_time_end_an_evaluation():
    kept = Kept()
    with pytest.raises(StoppedError, match="void_runs is 6|stop.void_runs 6"):
        serve_all(PLAN, due_in(PLAN, "confirm"), kept, workload_of=lambda due: EMPTY, subject_of=lambda due: Void())
    assert len(kept.runs) == PLAN.stop.void_runs + 1
    times = iter([0.0, 1.0, 2000.0])
    kept = Kept()
    with pytest.raises(StoppedError, match="stop.seconds is 900"):
        serve_all(
            PLAN, due_in(PLAN, "confirm"), kept,
            workload_of=lambda due: EMPTY, subject_of=lambda due: Void(), now=lambda: next(times),
        )  # fmt: skip
    assert len(kept.runs) == 1
