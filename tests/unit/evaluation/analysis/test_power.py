"""Blocks needed: more for a smaller effect, more noise or more certainty; and the noise that a plan's runs show."""

import numpy as np
import pytest

from ekiden.evaluation.analysis.comparing import Comparisons
from ekiden.evaluation.analysis.power import against_itself, blocks_needed, blocks_sentence, noise_of
from ekiden.evaluation.analysis.statistics import block_sd
from ekiden.evaluation.outcome import Label
from tests.unit.evaluation.analysis.made import KNOWN, METRICS, OBJECTIVES, Served, plan, runs

HOW = {"confidence": 0.95, "seed": 0}


def needed(noise_sd: float, effect: float, confidence: float = 0.95, power: float = 0.8) -> int:
    count = blocks_needed(noise_sd, effect, confidence, power)
    assert count is not None
    return count


def test_the_number_of_blocks_finds_the_effect_as_often_as_asked():
    """The t test itself, simulated: power lies above what was asked at the number, and below it at one less."""
    sd, effect = 0.1, 1.08
    count = needed(sd, effect)
    chance = np.random.default_rng(1)
    from scipy import stats

    def power(blocks: int) -> float:
        seen = chance.normal(np.log(effect), sd, (20_000, blocks))
        low = seen.mean(axis=1) - stats.t.ppf(0.95, blocks - 1) * seen.std(axis=1, ddof=1) / np.sqrt(blocks)
        return float((low > 0).mean())

    assert power(count) > 0.79
    assert power(count - 1) < 0.8


@pytest.mark.parametrize(
    "harder", [(0.2, 1.1, 0.95, 0.8), (0.1, 1.05, 0.95, 0.8), (0.1, 1.1, 0.99, 0.8), (0.1, 1.1, 0.95, 0.95)]
)
def test_what_is_harder_takes_more_blocks(harder):
    assert needed(*harder) > needed(0.1, 1.1)


def test_a_loss_takes_as_many_blocks_as_the_gain_that_undoes_it():
    assert blocks_needed(0.1, 1 / 1.1, 0.95, 0.8) == blocks_needed(0.1, 1.1, 0.95, 0.8)


def test_no_effect_is_never_found():
    assert blocks_needed(0.1, 1.0, 0.95, 0.8) is None
    assert blocks_needed(0.0, 1.1, 0.95, 0.8) == 3


@pytest.mark.parametrize(
    "wrong", [(0.1, 0.0, 0.95, 0.8), (-0.1, 1.1, 0.95, 0.8), (0.1, 1.1, 1.0, 0.8), (0.1, 1.1, 0.95, 0)]
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(ValueError):
        blocks_needed(*wrong)


def test_an_arm_against_itself_differs_by_noise_only():
    """Noise of 7 % a run makes a ratio of two runs vary by about 10 %."""
    made = runs({"a": Served(), "b": Served(pace=3)}, seed=2, blocks=40, workloads=["chat"], requests=40)
    found = against_itself(KNOWN["ttft_p50"], [run for run in made if run.arm == "a"], OBJECTIVES, **HOW)
    assert found is not None
    assert (found.low or 2) <= 1 <= (found.high or 0)
    assert 0.06 < (block_sd(found) or 0) < 0.16
    assert against_itself(KNOWN["tokens_equal"], made, OBJECTIVES, **HOW) is None


def comparisons(blocks: int) -> Comparisons:
    arms = {"continuous": Served(), "static": Served(), "window": Served()}
    made = runs(arms, seed=5, blocks=blocks, workloads=["chat"])
    return Comparisons(plan(blocks=blocks), made, KNOWN, Label.CONFIRMATORY)


def test_two_arms_of_the_same_settings_are_the_noise_where_they_were_run():
    both = runs({"a": Served(), "again": Served()}, seed=6, blocks=5, workloads=["chat"])
    found = noise_of(comparisons(5), KNOWN["goodput"], "chat", both)
    assert len(found) == 1
    assert found[0].blocks == 5
    assert len(noise_of(comparisons(5), KNOWN["goodput"], "chat", [])) == 3, "each arm against itself"


def test_the_sentence_names_what_is_needed_and_what_the_plan_has():
    found = noise_of(comparisons(6), KNOWN["goodput"], "chat", [])
    words = blocks_sentence(comparisons(6), METRICS[0], "chat", found, halved=True)
    assert words is not None
    assert words["en"].startswith("goodput on chat: about ")
    assert words["en"].endswith("the plan has 6")
    assert "計画は 6 ブロック" in words["ja"]
    assert blocks_sentence(comparisons(6), METRICS[0], "chat", [], halved=True) is None
