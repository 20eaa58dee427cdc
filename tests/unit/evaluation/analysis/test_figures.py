"""Figures of arms: subgroups add up to the whole, quantiles keep to their least numbers, and costs are not invented."""

import msgspec
import numpy as np
import pytest

from ekiden.evaluation.analysis.costs import TOTALS, totals
from ekiden.evaluation.analysis.figures import arm_figures, distribution
from ekiden.evaluation.analysis.metrics import DISTRIBUTIONS, FORMULAS, METRICS, units
from ekiden.evaluation.analysis.subgroups import MOST_TENANTS, OTHERS, bucket, most_requests, subgroups
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.results import ArmRun
from tests.unit.evaluation.analysis.made import plan
from tests.unit.evaluation.analysis.served import OBJECTIVES, answer, run, steps

PLAN = plan(objectives=OBJECTIVES)


def mixed(requests: int = 30, tenants: int = 3) -> ArmRun:
    """Of every three requests one is good, one is late and one is refused."""
    answers = []
    for number in range(requests):
        kind = number % 3
        times = ((0.5, 0.55), (3.0, 3.1), ())[kind]
        more = {
            "tenant": f"t{number % tenants}",
            "language": "ja" if number % 2 else "en",
            "priority": number % 2,
            "prompt_tokens": 2**kind * 20,
            "output_tokens": 10 * number,
            "failure": "http_503" if kind == 2 else None,
        }
        answers.append(answer(str(number), times, **more))
    return run(answers, steps=steps(), cpu_seconds=20.0)


def test_subgroups_of_a_kind_add_up_to_the_whole():
    figures = arm_figures(PLAN, [mixed(), mixed(9)])
    whole, parts = figures[0], figures[1:]
    assert (whole.subgroup, whole.offered, whole.good, whole.seconds) == ("", 39, 13, 20)
    kinds = {part.subgroup.partition("=")[0] for part in parts}
    assert kinds == {"tenant", "language", "priority", "prompt_tokens", "output_tokens"}
    for kind in kinds:
        own = [part for part in parts if part.subgroup.startswith(f"{kind}=")]
        assert sum(part.offered for part in own) == whole.offered
        assert sum(part.good for part in own) == whole.good
        assert sum(part.distributions["ttft"].n for part in own) == whole.distributions["ttft"].n
        for rate in ("goodput", "output_tokens_per_second"):
            assert sum(part.scalars[rate] or 0 for part in own) == pytest.approx(whole.scalars[rate])
        for failure, count in whole.failures.items():
            assert sum(part.failures.get(failure, 0) for part in own) == count


def test_a_scalar_is_the_metric_that_it_is_named_after():
    runs = [mixed(300), mixed(300)]
    whole = arm_figures(PLAN, runs)[0]
    assert whole.scalars["ttft_p99"] is not None
    for name, metric in METRICS.items():
        assert metric.pair_value or whole.scalars[name] == metric.value(runs, OBJECTIVES)


def test_what_is_not_good_adds_up_with_what_is():
    whole = arm_figures(PLAN, [mixed()])[0]
    assert whole.failures == {"http_503": 10, "late_first_token": 10}
    assert whole.good + sum(whole.failures.values()) == whole.offered


def test_figures_come_in_the_plans_order_and_void_runs_count_for_nothing():
    runs = [
        run([answer("1", (0.5,))], arm=arm, workload=workload)
        for workload in ("equal", "chat")
        for arm in ("window", "continuous")
    ]
    runs.append(run([answer("2", (0.5,))], void="sent late"))
    figures = arm_figures(PLAN, runs)
    ordered = [("chat", "continuous"), ("chat", "window"), ("equal", "continuous"), ("equal", "window")]
    assert [(one.workload, one.arm) for one in figures] == ordered
    assert {one.offered for one in figures} == {1}


def test_every_scalar_and_distribution_has_a_formula():
    whole = arm_figures(PLAN, [mixed()])[0]
    assert set(whole.scalars) == {name for name, metric in METRICS.items() if metric.pair_value is None} | set(TOTALS)
    assert set(whole.scalars) | set(whole.distributions) <= set(FORMULAS)
    assert set(whole.scalars) <= set(units(OBJECTIVES))
    assert set(whole.distributions) == set(DISTRIBUTIONS)
    assert whole.scalars["utilisation"] == 0.75


def test_the_machine_belongs_to_no_subgroup():
    figures = arm_figures(PLAN, [mixed()])
    assert "machine_seconds_per_good" in figures[0].scalars
    assert all("machine_seconds_per_good" not in part.scalars for part in figures[1:])
    assert msgspec.json.decode(msgspec.json.encode(figures[1])) == msgspec.to_builtins(figures[1])


def test_a_distribution_has_101_points_and_no_tail_that_it_cannot_carry():
    few, enough, many = (distribution(np.arange(count)) for count in (298, 299, 2995))
    assert (few.p99, few.p999) == (None, None)
    assert enough.p99 == pytest.approx(298 * 0.99)
    assert enough.p999 is None
    assert many.p999 == pytest.approx(2994 * 0.999)
    assert len(few.points) == 101
    assert (few.points[0], few.points[50], few.points[100]) == (0, few.p50, few.max)
    assert distribution([]).n == 0
    assert distribution([]).mean is None
    assert distribution([1.0], with_points=False).points == []


def test_send_lag_is_that_of_all_requests_that_were_sent():
    sent = answer("1", (1.0,), at=0.5, sent=0.75)
    refused = answer("2", at=1.0, sent=1.5, failure="http_503")
    lag = arm_figures(PLAN, [run([sent, refused])])[0].distributions["send_lag"]
    assert (lag.n, lag.max) == (2, 0.5)


@pytest.mark.parametrize(
    ("tokens", "name"), [(0, "0-16"), (16, "0-16"), (17, "17-64"), (64, "17-64"), (65, "65-256"), (1025, "1025-4096")]
)
def test_lengths_lie_in_buckets_with_fixed_edges(tokens, name):
    assert bucket(tokens)[1] == name


def test_tenants_with_few_requests_are_one_subgroup():
    crowd = mixed(requests=100, tenants=40)
    names = [name for name in subgroups([crowd]) if name.startswith("tenant=")]
    assert names == [*(f"tenant={tenant}" for tenant in sorted(most_requests(crowd.results))), f"tenant={OTHERS}"]
    assert len(names) == MOST_TENANTS + 1


def test_a_kind_that_tells_nothing_apart_has_no_subgroups():
    assert subgroups([run([answer("1", (0.5,)), answer("2", (0.5,))])]) == {}


def test_costs_are_sums_and_missing_where_a_run_lacks_its_part():
    measured, not_measured = run([], cpu_seconds=20.0, joules=30.0), run([], cpu_seconds=5.0)
    both = totals([measured, not_measured], OBJECTIVES)
    assert both == {"machine_seconds": 24.0, "cost": pytest.approx(0.048), "cpu_seconds": 25.0, "joules": None}
    assert totals([measured], Objectives(ttft=1, tpot=1))["cost"] is None
    assert set(totals([], OBJECTIVES).values()) == {None}
