"""The verdict can be each of three, follows from the plan's thresholds alone, and equal arms come out inconclusive."""

import os
from collections import Counter

import pytest

from ekiden.evaluation.analysis import statistics
from ekiden.evaluation.analysis.comparing import Comparisons
from ekiden.evaluation.analysis.statistics import Estimate, lacking
from ekiden.evaluation.analysis.verdict import (
    Thresholds,
    falsifiers,
    judged,
    judged_outcomes,
    metric_outcomes,
    predictions,
    summary,
    verdict_of,
)
from ekiden.evaluation.outcome import Falsifier, Label, Phase, Verdict
from ekiden.evaluation.plan.model import Arm, Metric, Predicted
from tests.unit.evaluation.analysis.made import KNOWN, METRICS, Served, plan, runs

EQUAL = {"continuous": Served(), "static": Served(), "window": Served()}
EVALUATIONS = int(os.environ.get("SOAK_EVALUATIONS", "50"))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Fewer resamples, and no p-values, on which no verdict rests."""
    monkeypatch.setattr(statistics, "RESAMPLES", 299)
    monkeypatch.setattr(statistics, "flipped_signs", lambda singles, metric, seed: None)


def evaluated(chat, *, equal=None, seed=1, blocks=8, label=Label.CONFIRMATORY, metrics=METRICS, **changes):
    made = [
        *runs(chat, seed=seed, blocks=blocks, workloads=["chat"], requests=40, noise=0.05),
        *runs(equal or EQUAL, seed=seed + 1, blocks=blocks, workloads=["equal"], requests=20),
    ]
    return Comparisons(plan(metrics, blocks=blocks, **changes), made, KNOWN, label)


def verdict(comparisons):
    outcomes, overturned = judged_outcomes(comparisons), falsifiers(comparisons)
    return verdict_of(outcomes, overturned)[0], outcomes, overturned


def failed(outcomes):
    return {outcome.metric for outcome in outcomes if outcome.phase is Phase.FAILED}


# -- one comparison ------------------------------------------------------------------------------------------------


def between(low, high, **changes):
    parts = {"value": (low + high) / 2, "blocks": 8, "candidate": 1.0, "baseline": 1.0}
    return Estimate(low=low, high=high, **(parts | changes))


def phase(found, metric=METRICS[0], planned=8):
    return judged(metric, found, Thresholds.of(metric, found.scale), planned=planned, failing=0.95)[0]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.1, 1.3, Phase.SUCCESSFUL),
        (1.09, 1.3, Phase.INCONCLUSIVE),
        (0.9, 0.99, Phase.FAILED),
        (0.9, 1.0, Phase.INCONCLUSIVE),
        (0.5, 2.0, Phase.INCONCLUSIVE),
        (0.96, 1.05, Phase.INCONCLUSIVE),
    ],
)
def test_the_whole_interval_has_to_meet_a_condition(low, high, expected):
    assert phase(between(low, high)) is expected


@pytest.mark.parametrize(
    ("direction", "low", "high", "expected"),
    [
        ("down", 0.8, 1.1, Phase.SUCCESSFUL),
        ("down", 1.0, 1.2, Phase.INCONCLUSIVE),
        ("down", 1.11, 1.2, Phase.FAILED),
        ("up", 0.9, 1.2, Phase.SUCCESSFUL),
        ("up", 0.8, 1.0, Phase.INCONCLUSIVE),
        ("up", 0.8, 0.89, Phase.FAILED),
    ],
)
def test_a_guardrail_may_be_worse_by_its_margin(direction, low, high, expected):
    metric = Metric(name="ttft_p50", direction=direction, margin=0.1)
    assert phase(between(low, high), metric) is expected


def test_the_margin_of_a_difference_is_in_its_own_unit():
    metric = Metric(name="errors", direction="down", margin=0.05)
    assert phase(between(0.0, 0.04, scale="difference"), metric) is Phase.SUCCESSFUL
    assert phase(between(0.06, 0.1, scale="difference"), metric) is Phase.FAILED


def test_answers_have_to_be_equal_unless_the_plan_says_otherwise():
    metric = Metric(name="tokens_equal", direction="up")
    assert phase(between(1.0, 1.0, scale="share"), metric) is Phase.SUCCESSFUL
    assert phase(between(0.99, 0.99, scale="share"), metric) is Phase.FAILED
    lenient = Metric(name="tokens_equal", direction="up", margin=0.02)
    assert phase(between(0.99, 0.99, scale="share"), lenient) is Phase.SUCCESSFUL


def test_missing_data_are_an_error_only_where_data_must_be_there():
    nothing = lacking({"en": "nobody served it", "ja": "実行なし"})
    metric = METRICS[0]
    assert phase(nothing) is Phase.ERROR
    optional = Metric(name="goodput", direction="up", success_condition="result > 1", must_have_data=False)
    assert phase(nothing, optional) is Phase.INCONCLUSIVE
    reasons = judged(metric, nothing, Thresholds.of(metric, "ratio"), planned=8, failing=0.95)[1]
    assert reasons == {"en": "Data are missing: nobody served it.", "ja": "データがない：実行なし。"}


def test_more_missing_blocks_than_are_borne_are_inconclusive():
    metric = Metric(name="goodput", direction="up", success_condition="result > 1", inconclusive_limit=1)
    assert phase(between(1.1, 1.2, blocks=7), metric) is Phase.SUCCESSFUL
    assert phase(between(1.1, 1.2, blocks=6), metric) is Phase.INCONCLUSIVE


def test_one_failure_among_many_comparisons_has_to_be_surer():
    """An interval that just fails at 95 % is undecided where ten critical comparisons could each have failed."""
    found = between(0.9, 0.99, middle=-0.06, error=0.0264)
    metric = METRICS[0]
    thresholds = Thresholds.of(metric, "ratio")
    assert judged(metric, found, thresholds, planned=8, failing=0.95)[0] is Phase.FAILED
    undecided, reasons = judged(metric, found, thresholds, planned=8, failing=0.995)
    assert undecided is Phase.INCONCLUSIVE
    assert "not at the 99.50%" in reasons["en"]


def test_a_wrong_answer_is_wrong_however_many_blocks_are_missing():
    assert (
        phase(between(0.9, 0.9, scale="share", blocks=3), Metric(name="tokens_equal", direction="up")) is Phase.FAILED
    )


# -- the whole -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.05, 0.1])
def test_equal_arms_are_inconclusive_at_least_95_times_in_100(noise, monkeypatch):
    """``make soak`` makes 500 evaluations at each noise; with fewer blocks than a real one, for speed."""
    monkeypatch.setattr(statistics, "RESAMPLES", 99)
    arms = {"continuous": Arm(role="candidate", settings={"a": 1}), "static": Arm()}
    given = plan(blocks=5, arms=arms)
    found: Counter[Verdict] = Counter()
    for seed in range(EVALUATIONS):
        made = runs({"continuous": Served(), "static": Served()}, seed=seed, blocks=5, noise=noise)
        found[verdict(Comparisons(given, made, KNOWN, Label.CONFIRMATORY))[0]] += 1
    assert found[Verdict.INCONCLUSIVE] >= 0.95 * EVALUATIONS, found


def test_a_real_gain_is_adopted():
    slow = {"continuous": Served(), "static": Served(pace=1.7), "window": Served(pace=1.6)}
    found, outcomes, overturned = verdict(evaluated(slow))
    assert found is Verdict.ADOPT, [outcome.reason for outcome in outcomes]
    words = summary(found, outcomes, overturned, Label.CONFIRMATORY)
    assert "every baseline" in words["en"]
    assert "すべての基準" in words["ja"]


def test_a_gain_over_the_weak_baseline_alone_is_not_adopted():
    """``static`` is beaten and the better tuned ``window`` is not."""
    found, outcomes, _ = verdict(evaluated({"continuous": Served(), "static": Served(pace=1.8), "window": Served()}))
    assert found is Verdict.INCONCLUSIVE
    phases = {outcome.baseline: outcome.phase for outcome in outcomes if outcome.metric == "goodput"}
    assert phases == {"static": Phase.SUCCESSFUL, "window": Phase.INCONCLUSIVE}


def test_a_candidate_that_is_a_fifth_slower_is_not_adopted():
    baselines = {"static": Served(pace=1.2), "window": Served(pace=1.2)}
    found, outcomes, _ = verdict(evaluated({"continuous": Served(pace=1.2 * 1.2), **baselines}))
    assert found is Verdict.DO_NOT_ADOPT
    assert "goodput" in failed(outcomes)


def test_wrong_tokens_in_one_arm_are_not_adopted_and_the_first_is_named():
    gain = {"continuous": Served(wrong_from=35), "static": Served(pace=1.7), "window": Served(pace=1.7)}
    found, outcomes, overturned = verdict(evaluated(gain))
    assert found is Verdict.DO_NOT_ADOPT
    assert failed(outcomes) == {"tokens_equal"}
    assert "0-35 differs" in summary(found, outcomes, overturned, Label.CONFIRMATORY)["en"]


def test_an_order_that_starves_a_tenant_is_not_adopted_though_the_others_gain():
    gain = {"continuous": Served(pace=0.5, starved="t2"), "static": Served(pace=2), "window": Served(pace=2)}
    found, outcomes, _ = verdict(evaluated(gain))
    assert found is Verdict.DO_NOT_ADOPT
    assert "worst_tenant_attainment" in failed(outcomes)
    assert "goodput" not in failed(outcomes)


def test_a_falsifier_that_comes_true_turns_a_success():
    """The candidate gains where it should not: with outputs of equal length."""
    slow = {"continuous": Served(), "static": Served(pace=1.7), "window": Served(pace=1.6)}
    found, outcomes, overturned = verdict(evaluated(slow, equal=slow))
    assert found is Verdict.DO_NOT_ADOPT
    assert [one.met for one in overturned] == [True]
    assert "against" not in overturned[0].observed
    assert "continuous / window" in overturned[0].observed, "the better of the two baselines"
    words = summary(found, outcomes, overturned, Label.CONFIRMATORY)
    assert words["en"].startswith("A registered falsifier came true: the gain comes from refilling")


def test_a_falsifier_that_nobody_can_judge_bars_adoption():
    slow = {"continuous": Served(), "static": Served(pace=1.7), "window": Served(pace=1.6)}
    comparisons = evaluated(slow)
    comparisons.runs = [run for run in comparisons.runs if run.workload == "chat"]
    found, _, overturned = verdict(comparisons)
    assert overturned[0].met is None
    assert found is Verdict.INCONCLUSIVE


def test_an_arm_that_never_ran_is_missing_data():
    comparisons = evaluated(EQUAL)
    comparisons.runs = [run for run in comparisons.runs if run.arm != "window"]
    found, outcomes, _ = verdict(comparisons)
    assert found is Verdict.DO_NOT_ADOPT
    errors = {(outcome.metric, outcome.baseline) for outcome in outcomes if outcome.phase is Phase.ERROR}
    assert errors == {(metric.name, "window") for metric in METRICS}


def test_what_has_no_threshold_is_measured_and_not_judged():
    arms = {**plan().arms, "fair": Arm(role="other")}
    chat = {**EQUAL, "fair": Served(pace=3)}
    outcomes = metric_outcomes(evaluated(chat, arms=arms, metrics=METRICS[:1]))
    rest = {(outcome.workload, outcome.baseline): outcome.phase for outcome in outcomes if not outcome.judged}
    assert rest == {
        ("chat", "fair"): Phase.PENDING,
        ("equal", "static"): Phase.PENDING,
        ("equal", "window"): Phase.PENDING,
        ("equal", "fair"): Phase.PENDING,
    }
    assert not any(outcome.critical for outcome in outcomes if not outcome.judged)
    assert outcomes[0].judged


def test_a_plan_without_a_critical_metric_decides_nothing():
    lenient = [Metric(name="goodput", direction="up", success_condition="result > 0.1")]
    found, outcomes, overturned = verdict(evaluated(EQUAL, metrics=lenient))
    assert outcomes[0].phase is Phase.SUCCESSFUL
    assert found is Verdict.INCONCLUSIVE
    assert "no critical metric" in summary(found, outcomes, overturned, Label.CONFIRMATORY)["en"]


@pytest.mark.parametrize(("condition", "held"), [("result < 1.5", True), ("result > 1.5", False), ("result > 1", None)])
def test_a_prediction_holds_fails_or_cannot_be_told(condition, held):
    expected = [Predicted(text="about the same", workload="equal", metric="goodput", condition=condition)]
    assert [one.held for one in predictions(evaluated(EQUAL, predictions=expected))] == [held]


def test_exploratory_figures_say_that_they_confirm_nothing():
    comparisons = evaluated(EQUAL, label=Label.EXPLORATORY)
    found, outcomes, overturned = verdict(comparisons)
    words = summary(found, outcomes, overturned, Label.EXPLORATORY)
    assert words["en"].endswith("it confirms nothing.")
    assert words["ja"].endswith("確認したものではない。")


def test_a_met_falsifier_outweighs_everything():
    met = Falsifier(claim="c", workload="w", metric="m", condition="result > 1", met=True, observed="2")
    assert verdict_of([], [met]) == (Verdict.DO_NOT_ADOPT, Phase.FAILED)
