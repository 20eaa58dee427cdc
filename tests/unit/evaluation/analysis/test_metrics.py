"""Every metric is worked out by hand on a few answers, and what cannot be estimated has no value."""

import math
from dataclasses import fields

import pytest

from ekiden.config import SchedulerConfig
from ekiden.evaluation.analysis.metrics import DISTRIBUTIONS, FORMULAS, METRICS, units
from ekiden.evaluation.analysis.requests import fault, faults
from ekiden.evaluation.plan.model import Objectives
from ekiden.measure import service
from ekiden.measure.percentiles import MIN_VALUES_FOR_P99, MIN_VALUES_FOR_P999
from tests.unit.evaluation.analysis.served import OBJECTIVES, answer, run, steps

GOOD = answer("good", (0.5, 0.55, 0.65), tenant="a", slowest_alone=0.325)
LATE = answer("late", (1.5, 1.6), tenant="a", slowest_alone=1.6)
STALLED = answer("stalled", (0.2, 0.6), tenant="b")
REFUSED = answer("refused", failure="http_503", tenant="b")
CUT = answer("cut", (0.1, 0.2), failure="timeout", tenant="b")
MIXED = run([GOOD, LATE, STALLED, REFUSED, CUT], steps=steps(), cpu_seconds=20.0, joules=90.0)

BY_HAND = {
    "goodput": 1 / 10,
    "slo_attainment": 1 / 5,
    "ttft_p50": 0.5,
    "ttft_p95": 1.4,
    "tpot_p50": 0.1,
    "tpot_p95": 0.1 + 0.9 * 0.3,
    "largest_gap_p50": 0.1,
    "e2e_p50": 0.65,
    "e2e_p95": 0.65 + 0.9 * 0.95,
    "output_tokens_per_second": 7 / 12,
    "total_tokens_per_second": 37 / 12,
    "worst_tenant_attainment": 0.0,
    "attainment_gap": 0.5,
    "slowdown_max": 2.0,
    "errors": 2 / 5,
    "machine_seconds_per_good": 12.0,
    "cost_per_good": 12 / 3600 * 7.2,
    "cpu_seconds_per_good": 20.0,
    "joules_per_good": 90.0,
    "utilisation": 0.75,
    "budget_share": 0.25,
    "kv_share": 0.1,
    "host_share": 0.25,
    "preemptions": 2 / 5,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_metric_is_what_was_worked_out_by_hand(name):
    assert METRICS[name].value([MIXED], OBJECTIVES) == pytest.approx(BY_HAND[name])


def test_every_metric_is_tested_somewhere_here():
    elsewhere = {"tokens_equal", "language_gap", "service_gap"}
    tails = {name for name, metric in METRICS.items() if metric.min_values > 1}
    assert set(METRICS) == set(BY_HAND) | elsewhere | tails


def test_every_metric_has_a_formula_and_every_figure_too():
    assert set(METRICS) | set(DISTRIBUTIONS) <= set(FORMULAS)
    assert all(len(formula) > 10 for formula in FORMULAS.values())
    assert set(METRICS) <= set(units(OBJECTIVES))
    assert units(OBJECTIVES)["cost_per_good"] == "USD"
    assert {metric.direction for metric in METRICS.values()} == {"up", "down"}


def test_pooling_divides_sums_by_sums():
    short = run([GOOD], block=1, arrival_seconds=90.0)
    assert METRICS["goodput"].value([MIXED, short], OBJECTIVES) == pytest.approx(2 / 100)
    assert METRICS["slo_attainment"].value([MIXED, short], OBJECTIVES) == pytest.approx(2 / 6)
    assert METRICS["worst_tenant_attainment"].value([MIXED, run([GOOD, LATE])], OBJECTIVES) == 0.0
    assert METRICS["attainment_gap"].value([MIXED, run([GOOD])], OBJECTIVES) == pytest.approx(2 / 3)


def test_what_is_not_good_is_named_by_its_kind():
    expected = {"http_503": 1, "late_first_token": 1, "late_tokens": 1, "timeout": 1}
    assert faults(MIXED.results, OBJECTIVES) == expected
    assert fault(answer("nothing"), OBJECTIVES) == "empty"
    assert fault(GOOD, OBJECTIVES) is None


def test_refusing_cannot_raise_attainment_or_goodput():
    served, refusing = run([GOOD, LATE]), run([GOOD, answer("late", failure="http_429", tenant="a")])
    for name in ("slo_attainment", "goodput", "worst_tenant_attainment"):
        assert METRICS[name].value([served], OBJECTIVES) == METRICS[name].value([refusing], OBJECTIVES)


@pytest.mark.parametrize(("name", "least"), [("ttft_p99", MIN_VALUES_FOR_P99), ("ttft_p999", MIN_VALUES_FOR_P999)])
def test_a_tail_needs_so_many_values(name, least):
    level = 1 - 0.05 ** (1 / least)
    assert level <= {"ttft_p99": 0.01, "ttft_p999": 0.001}[name] < 1 - 0.05 ** (1 / (least - 1))
    answers = [answer(str(number), (number / 1000,)) for number in range(least)]
    assert METRICS[name].value([run(answers[:-1])], OBJECTIVES) is None
    wanted = (least - 1) * (0.99 if name == "ttft_p99" else 0.999) / 1000
    assert METRICS[name].value([run(answers[:100]), run(answers[100:])], OBJECTIVES) == pytest.approx(wanted)


def test_what_was_not_measured_has_no_value():
    bare = run([GOOD])
    unpriced = Objectives(ttft=1.0, tpot=0.1)
    for name in ("joules_per_good", "cpu_seconds_per_good", "utilisation", "kv_share", "preemptions", "host_share"):
        assert METRICS[name].value([bare, MIXED], OBJECTIVES) is None
    assert METRICS["cost_per_good"].value([bare], unpriced) is None
    assert METRICS["slowdown_max"].value([run([STALLED])], OBJECTIVES) is None
    assert METRICS["attainment_gap"].value([bare], OBJECTIVES) is None, "one tenant cannot be treated unequally"
    assert METRICS["machine_seconds_per_good"].value([run([LATE])], OBJECTIVES) is None, "nothing was good"


def test_languages_are_compared_over_pairs_of_the_same_task():
    def task(pair, language, e2e, **more):
        return answer(f"{pair}-{language}", (e2e,), pair=pair, language=language, **more)

    pairs = [task("1", "en", 1.0), task("1", "ja", 2.0), task("2", "en", 1.0), task("2", "ja", 8.0)]
    alone = [task("3", "ja", 99.0), task("4", "en", 1.0), task("4", "ja", 99.0, failure="timeout"), answer("x", (9.0,))]
    assert METRICS["language_gap"].value([run(pairs + alone)], OBJECTIVES) == pytest.approx(4.0)
    swapped = [
        answer(a.id, a.record.event_times, pair=a.pair, language={"en": "ja", "ja": "en"}[a.language]) for a in pairs
    ]
    assert METRICS["language_gap"].value([run(swapped)], OBJECTIVES) == pytest.approx(4.0)
    assert METRICS["language_gap"].value([run(alone)], OBJECTIVES) is None


def test_the_service_gap_is_the_mean_of_the_runs_shares_of_the_bound():
    # a: 10 prompt + 2 output tokens at 1 s while b waits: 10 + 2 * 1 = 12, bound 2 * 2 * 100; nobody else waits.
    served = run([answer("1", (1.0,), tenant="a"), answer("2", (2.0,), tenant="b")], steps=steps())
    even = run([answer("1", (1.0,), tenant="a"), answer("2", (1.0,), tenant="b")], steps=steps())
    assert METRICS["service_gap"].value([served], OBJECTIVES) == pytest.approx(12 / 400)
    assert METRICS["service_gap"].value([served, even], OBJECTIVES) == pytest.approx(6 / 400)
    assert METRICS["service_gap"].value([run([GOOD])], OBJECTIVES) is None


def test_service_weighs_tokens_as_the_order_fair_does():
    defaults = {field.name: field.default for field in fields(SchedulerConfig)}
    assert defaults["fair_prompt_weight"] == service.PROMPT_WEIGHT
    assert defaults["fair_output_weight"] == service.OUTPUT_WEIGHT


@pytest.mark.parametrize("name", METRICS)
def test_no_metric_breaks_on_a_run_without_an_answer(name):
    metric = METRICS[name]
    for results in ([], [REFUSED]):
        value = None if metric.pair_value else metric.value([run(results)], OBJECTIVES)
        assert value is None or math.isfinite(value)
