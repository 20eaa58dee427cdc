"""Fairness between tenants and languages on answers made by hand, and its curve over time."""

import msgspec
import pytest

from ekiden.evaluation.analysis.fairness import MOST_POINTS, fairness, fairness_charts, jain_index
from ekiden.evaluation.analysis.service import ServiceGap, bound_of, service_gap, services, tokens_in_flight
from ekiden.evaluation.results import ArmRun
from ekiden.evaluation.workloads.offer import Kind, Offer, Workload
from ekiden.measure.service import difference
from tests.unit.evaluation.analysis.made import plan
from tests.unit.evaluation.analysis.served import OBJECTIVES, answer, run, steps
from tests.unit.evaluation.simulated_arms import INFO, subject

PLAN = plan(objectives=OBJECTIVES)


def flooded(count=5, **more):
    """``flood`` is served one request a second; ``lone`` came at the start and is served after all of them."""
    flood = [answer(f"f{number}", (number + 1.0,), tenant="flood") for number in range(count)]
    return run([*flood, answer("l", (count + 1.0,), tenant="lone")], **({"steps": steps()} | more))


def gap_of(run: ArmRun) -> ServiceGap:
    found = service_gap(run)
    assert found is not None
    return found


def test_service_differs_by_what_one_got_while_the_other_waited():
    gap = gap_of(flooded(5))
    # Five prompts of 10 tokens and five output tokens of weight 2, in the time in which both waited.
    assert gap.tokens == 5 * 10 + 5 * 2
    assert gap.tenants in {("flood", "lone"), ("lone", "flood")}
    assert (gap.bound, gap.bound_from) == (2 * 2 * 100, "kv pool")
    assert gap.share == 60 / 400


def test_service_counts_only_while_both_wait():
    served_alone = [answer(f"f{number}", (number + 1.0,), tenant="flood") for number in range(5)]
    later = answer("l", (4.5,), at=3.5, tenant="lone")
    gap = gap_of(run([*served_alone, later]))
    # From 3.5 to 4.5 the flood got one answer, then the other got its own.
    assert gap.tokens == 12


def test_service_of_any_stretch_counts_and_not_only_from_the_start():
    # p gets 12 at 1 s, q 36 by 4 s: from 1 s on the difference grew by 36, whatever stood before.
    p = [answer("p1", (1.0,), tenant="p"), answer("p2", (9.0,), tenant="p")]
    q = [answer(f"q{at}", (at,), tenant="q") for at in (2.0, 3.0, 4.0, 8.0)]
    found = services(run(p + q))
    assert difference(found["p"], found["q"]) == difference(found["q"], found["p"]) == 4 * 12


def test_every_time_in_which_both_wait_counts():
    p = [answer("1", (1.0,), tenant="p"), answer("2", (3.0,), at=2.0, prompt_tokens=50, tenant="p")]
    found = services(run([*p, answer("3", (5.0,), tenant="q")]))
    assert difference(found["p"], found["q"]) == difference(found["q"], found["p"]) == 52


def test_who_gets_tokens_waits_no_more():
    assert gap_of(run([answer("1", (1.0, 5.0), tenant="p"), answer("2", (6.0,), tenant="q")])).tokens == 12


def test_a_refused_request_does_not_wait_and_one_that_timed_out_does():
    served = [answer(f"f{number}", (number + 1.0,), tenant="flood") for number in range(4)]
    waited = answer("l", failure="timeout", end=2.5, tenant="lone")
    refused = answer("l", failure="refused_full", end=2.5, tenant="lone")
    assert gap_of(run([*served, waited])).tokens == 2 * 12
    assert gap_of(run([*served, refused])).tokens == 0


def test_without_a_known_pool_the_tokens_in_flight_make_the_bound():
    overlapping = [answer("1", (1.0, 3.0)), answer("2", (2.0, 4.0)), answer("3", (5.0, 6.0))]
    assert tokens_in_flight(overlapping) == 24
    assert bound_of(run(overlapping)) == (2 * 2 * 24, "tokens in flight")
    assert bound_of(run([]))[0] > 0


def test_the_order_fair_keeps_the_bound_that_first_come_first_served_has_no_part_in() -> None:
    offers = [
        Offer(id=f"{tenant}{number}", at=start + number / 100, output_tokens=20, prompt_tokens=30, tenant=tenant)
        for tenant, start, count in (("flood", 0.0, 60), ("lone", 0.5, 20))
        for number in range(count)
    ]
    offered = Workload(
        name="flood",
        kind=Kind.MISLEADING,
        seconds=0.7,
        offers=tuple(sorted(offers, key=lambda offer: offer.at)),
        made={},
        sources={},
    )
    fcfs, fair = (subject({"scheduling_policy": order}).serve(offered) for order in ("fcfs", "fair"))
    assert gap_of(fair).bound == gap_of(fcfs).bound == 2 * 2 * INFO.num_blocks * INFO.block_size
    assert gap_of(fair).share < 1
    assert gap_of(fcfs).tokens > 10 * gap_of(fair).tokens


def test_the_worst_tenant_is_named_beside_the_gap_and_the_index():
    answers = [answer("1", (0.5,), tenant="a"), answer("2", (0.5,), tenant="a"), answer("3", (5.0,), tenant="b")]
    (row, *_) = fairness(PLAN, [run(answers)])
    assert (row["arm"], row["workload"], row["subgroup"]) == ("continuous", "chat", "")
    assert (row["tenants"], row["worst_tenant"]) == (2, "b")
    assert (row["worst_tenant_attainment"], row["attainment_gap"], row["jain"]) == (0.0, 1.0, 0.5)


def test_the_largest_gap_of_any_run_stands_beside_the_mean():
    (row, *_) = fairness(PLAN, [flooded(5), flooded(1, block=1)])
    assert row["service_gap"] == pytest.approx((60 + 12) / 2 / 400)
    assert row["largest_service_gap"] == 60 / 400
    assert row["service_bound"] == 400
    assert set(row["largest_between"].split(" / ")) == {"flood", "lone"}


def test_slowdowns_are_told_by_subgroup():
    answers = [
        answer("1", (1.0,), tenant="a", slowest_alone=0.5, prompt_tokens=8),
        answer("2", (9.0,), tenant="b", slowest_alone=1.0, prompt_tokens=100),
        answer("3", (9.0,), tenant="b", prompt_tokens=100),
    ]
    rows = {row["subgroup"]: row for row in fairness(PLAN, [run(answers)])}
    assert (
        rows[""]["slowdown_max"]
        == rows["tenant=b"]["slowdown_max"]
        == rows["prompt_tokens=65-256"]["slowdown_max"]
        == 9
    )
    assert rows["tenant=a"]["slowdown_max"] == 2
    assert rows["tenant=b"]["slowdowns"] == 1
    assert rows[""]["slowdown_p99"] is None, "two values carry no p99"


def test_languages_are_compared_as_pairs_and_the_slower_one_can_be_told():
    answers = [answer("1e", (1.0,), language="en", pair="1"), answer("1j", (0.25,), language="ja", pair="1")]
    (row, *_) = fairness(PLAN, [run(answers)])
    assert (row["language_pairs"], row["language_gap"]) == (1, pytest.approx(4))
    assert row["other_to_english_e2e"] == row["other_to_english_ttft"] == pytest.approx(0.25)


def test_one_tenant_and_one_language_say_nothing_of_fairness():
    assert fairness(PLAN, [run([answer("1", (1.0,))])]) == []
    assert fairness_charts(PLAN, [run([answer("1", (1.0,))])]) == []


def test_the_curve_grows_while_one_tenant_waits_in_vain():
    fair = run(
        [
            *(answer(f"f{number}", (2.0 * number + 1,), tenant="flood") for number in range(3)),
            *(answer(f"l{number}", (2.0 * number + 2,), tenant="lone") for number in range(3)),
        ],
        arm="static",
        steps=steps(),
    )
    (chart,) = fairness_charts(PLAN, [fair, flooded(5), flooded(2, block=1)])
    assert chart.kind == "fairness_time"
    assert [curve.name for curve in chart.curves] == ["continuous", "static"]
    unfair, even = (dict(zip(curve.x, curve.y, strict=True)) for curve in chart.curves)
    assert [unfair[second] for second in (1.0, 3.0, 5.0)] == [12 / 400, 36 / 400, 60 / 400]
    assert max(abs(share) for share in even.values()) == 12 / 400
    msgspec.json.encode(chart)


def test_a_long_curve_is_thinned_but_keeps_its_ends():
    (chart,) = fairness_charts(PLAN, [flooded(1000)])
    (curve,) = chart.curves
    assert len(curve.x) <= MOST_POINTS
    assert (curve.x[0], curve.y[-1]) == (0, 12_000 / 400)


def test_arms_that_share_no_block_are_not_drawn_together():
    assert fairness_charts(PLAN, [flooded(5), flooded(5, arm="static", block=1)]) == []


def test_jains_index_is_one_for_equals_and_the_nth_part_where_one_has_all():
    assert jain_index([0.5, 0.5, 0.5]) == pytest.approx(1)
    assert jain_index([1.0, 0, 0, 0]) == 0.25
    assert jain_index([0.0, 0.0]) is None
