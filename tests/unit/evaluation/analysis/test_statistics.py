"""Intervals over blocks hold what they promise, zeros have no logarithm and need none, and what is missing is said."""

import math

import numpy as np
import pytest

from ekiden.evaluation.analysis import statistics
from ekiden.evaluation.analysis.metric import MetricDef, Sums, pooled_percentile
from ekiden.evaluation.analysis.statistics import PooledArm, block_sd, compare, whole_blocks
from tests.unit.evaluation.analysis.made import KNOWN, OBJECTIVES, Served, runs


def rate(direction: str = "up", scale: str = "ratio") -> MetricDef:
    return MetricDef(
        name="rate", formula="", unit="", direction=direction, scale=scale, of_run=lambda run, objectives: Sums(1, 1)
    )


def arm(values, metric: MetricDef | None = None) -> PooledArm:
    return PooledArm(metric or rate(), {block: [Sums(value, 1.0)] for block, value in enumerate(values)})


def estimate(ours, theirs, metric: MetricDef | None = None):
    return compare(arm(ours, metric), arm(theirs, metric), range(len(ours)), confidence=0.95, seed=1)


def test_the_ratio_is_that_of_the_pooled_values_and_blocks_are_shown_one_by_one():
    found = estimate([1, 2, 3, 6], [1, 1, 2, 2])
    assert found.value == 12 / 6
    assert found.block_values == (1, 2, 1.5, 3)
    assert found.low < 2 < found.high


@pytest.mark.parametrize("blocks", [5, 8])
def test_bounds_hold_about_as_often_as_they_promise(blocks, monkeypatch):
    """Of 300 comparisons of equal arms, each bound of 95 % holds in 93 % at the very least (z = 1.6 below), where the
    percentile bootstrap holds in 89 to 92 %."""
    monkeypatch.setattr(statistics, "RESAMPLES", 299)
    monkeypatch.setattr(statistics, "flipped_signs", lambda singles, metric, seed: None)
    chance = np.random.default_rng(blocks)
    held = np.zeros(2)
    for _ in range(300):
        mood = chance.normal(0, 0.1, blocks)
        found = estimate(*np.exp(mood + chance.normal(0, 0.1, (2, blocks))).tolist())
        held += (found.low <= 1, found.high >= 1)
    assert (held >= 0.93 * 300).all()
    assert (held < 300).all(), "bounds that never fail are too wide"


def test_the_same_seed_gives_the_same_bounds():
    one, two = (estimate([1.0, 1.2, 0.9, 1.1, 1.4], [1.0, 1.0, 1.1, 0.9, 1.0]) for _ in range(2))
    assert one == two


def test_a_pooled_percentile_is_that_of_all_values_of_the_drawn_blocks_together():
    """The table that resamples are read from gives what pooling them one by one gives."""
    metric = KNOWN["ttft_p99"]
    pooled = PooledArm.of(metric, runs({"a": Served()}, seed=1, blocks=5, workloads=["chat"]), OBJECTIVES)
    blocks = list(pooled.parts)
    drawn = np.random.default_rng(0).integers(0, 5, (40, 5))
    expected = [pooled.value([blocks[place] for place in row]) for row in drawn]
    assert pooled.values(blocks, drawn) == pytest.approx(expected)


def test_percentiles_of_parts_without_values_are_nowhere():
    empty = np.array([])
    assert pooled_percentile(99)([empty]) is None
    assert np.isnan(pooled_percentile(99).resampled([empty, empty], np.array([[1, 1]]))).all()
    assert pooled_percentile(50).resampled([empty, np.array([1.0, 3.0])], np.array([[1, 1]])) == [2.0]


def test_too_few_values_are_not_estimable():
    made = runs({"a": Served(), "b": Served()}, seed=1, blocks=5, requests=20, workloads=["chat"])
    one, two = (
        PooledArm.of(KNOWN["ttft_p99"], [run for run in made if run.arm == name], OBJECTIVES) for name in ("a", "b")
    )
    found = compare(one, two, range(5), confidence=0.95, seed=0)
    assert (found.value, found.low) == (None, None)
    assert "fewer than 299" in found.notes["en"]
    assert not found.missing


def test_few_blocks_have_a_ratio_and_no_interval():
    found = estimate([2, 2], [1, 1])
    assert (found.value, found.low, found.high) == (2, None, None)
    assert "2 blocks" in found.notes["en"]


def test_a_candidate_that_does_nothing_has_the_ratio_0_and_a_bound_above_it():
    found = estimate([0] * 6, [4, 5, 6, 5, 4, 6])
    assert (found.value, found.low) == (0, 0)
    assert 0 < found.high < 0.2


def test_nothing_is_divided_by_a_baseline_of_0():
    found = estimate([4, 5, 6, 5, 4, 6], [0] * 6)
    assert (found.value, found.high) == (None, math.inf)
    assert found.low > 5
    assert found.comparison().high is None
    assert "0" in found.comparison().note


def test_a_block_without_anything_is_no_obstacle():
    found = estimate([4, 5, 6, 5, 4, 6], [0, 0, 1, 0, 1, 0])
    assert found.value == 15
    assert 1 < found.low < 15 < found.high < math.inf


def test_two_arms_that_do_nothing_are_equal():
    found = estimate([0] * 6, [0] * 6)
    assert (found.value, found.low, found.high) == (1, 1, 1)


def test_differences_need_no_positive_values():
    metric = rate("down", "difference")
    found = estimate([0, 0.1, 0, 0, 0.1, 0], [0] * 6, metric)
    assert found.value == pytest.approx(0.2 / 6)
    assert found.low < found.value < found.high


def test_swapping_arms_within_blocks_gives_an_exact_p_value():
    """All six blocks speak for the candidate: of 64 ways to swap them one does as well."""
    assert estimate([2, 3, 2, 3, 2, 3], [1] * 6).p_value == pytest.approx(1 / 64)
    assert estimate([1] * 6, [2, 3, 2, 3, 2, 3]).p_value == 1
    fewer_is_better = rate("down")
    assert estimate([1] * 6, [2, 3, 2, 3, 2, 3], fewer_is_better).p_value == pytest.approx(1 / 64)


def test_a_missing_part_takes_its_block_out_and_no_part_at_all_is_missing_data():
    whole, lame = arm([1, 1, 1, 1, 1]), arm([1, 1, 1, 1, 1])
    del lame.parts[2]
    assert compare(whole, lame, range(5), confidence=0.95, seed=0).blocks == 4
    found = compare(whole, arm([]), range(5), confidence=0.95, seed=0)
    assert found.missing
    assert found.value is None


def test_only_blocks_count_in_which_both_arms_ran_equally_often_and_nothing_is_void():
    made = runs({"a": Served(), "b": Served()}, seed=1, blocks=4, requests=2, workloads=["chat"])
    ours, theirs = ([run for run in made if run.arm == name] for name in ("a", "b"))
    assert whole_blocks(ours, theirs) == [0, 1, 2, 3]
    theirs[0].void = "late"
    ours = [run for run in ours if (run.block, run.position) != (ours[-1].block, ours[-1].position)]
    assert whole_blocks(ours, theirs) == [1, 2]


def test_the_spread_of_blocks_is_that_of_their_logarithms():
    found = estimate([1, 2, 1, 2], [1, 1, 1, 1])
    assert block_sd(found) == pytest.approx(np.std(np.log([1, 2, 1, 2]), ddof=1))
