"""Each generated source has the property that it is named after, in every block."""

import statistics
from collections import Counter
from itertools import pairwise

import pytest

from tests.unit.evaluation.workloads.making import made


def gaps(workload):
    times = [offer.at for offer in workload.offers]
    return [later - sooner for sooner, later in pairwise(times)]


def cv(values):
    return statistics.pstdev(values) / statistics.fmean(values)


@pytest.mark.parametrize("block", range(3))
def test_equal_lengths_are_equal_and_come_in_whole_groups(block):
    workload = made("equal-lengths", block=block)
    assert {(offer.prompt_tokens, offer.output_tokens) for offer in workload.offers} == {(128, 64)}
    assert set(Counter(offer.at for offer in workload.offers).values()) == {8}


@pytest.mark.parametrize("wanted", [0, 0.25, 0.5, 1.0, 1.5])
def test_length_variance_has_the_variation_asked_for_and_one_mean(wanted):
    workload = made("length-variance", options={"cv": wanted}, block=2)
    outputs = [offer.output_tokens for offer in workload.offers]
    assert sum(outputs) == 64 * len(outputs)
    assert cv(outputs) == pytest.approx(wanted, abs=0.1)
    assert {offer.prompt_tokens for offer in workload.offers} == {128}


def test_without_variance_it_is_equal_lengths():
    none, equal = made("length-variance", options={"cv": 0.0}), made("equal-lengths")
    fields = ("at", "prompt_tokens", "output_tokens", "max_tokens")
    assert [[getattr(o, f) for f in fields] for o in none.offers] == [
        [getattr(o, f) for f in fields] for o in equal.offers
    ]


@pytest.mark.parametrize("block", range(3))
def test_a_lone_client_never_overlaps_on_a_machine_as_slow_as_stated(block):
    workload = made("lone-client", block=block)
    ends = [offer.at + 0.005 * offer.prompt_tokens + 0.05 * offer.output_tokens for offer in workload.offers]
    assert all(end <= following.at for end, following in zip(ends, workload.offers[1:], strict=False))
    assert max(ends) <= workload.seconds


def test_a_lone_client_keeps_its_pauses_where_time_is_no_multiple_of_them():
    workload = made("lone-client", seconds=30.0, rate=0.25)
    assert [offer.at for offer in workload.offers] == [4.0 * index for index in range(8)]


def test_a_flood_is_at_least_so_many_times_the_quiet_tenant():
    workload = made("flood", seconds=210.0)
    assert Counter(offer.tenant for offer in workload.offers) == {"flood": 200, "quiet": 10}
    for seconds in (21.0, 35.0, 48.0):
        counts = Counter(offer.tenant for offer in made("flood", seconds=seconds).offers)
        assert counts["flood"] >= 20 * counts["quiet"] > 0


def test_long_prompts_are_as_many_as_asked_for_among_short_ones():
    workload = made("long-among-short", options={"long_share": 0.125})
    long = [offer for offer in workload.offers if offer.prompt_tokens >= 1024]
    assert len(long) == workload.made["long_prompts"] == 6
    assert max(o.prompt_tokens for o in workload.offers if o not in long) < 256


def test_groups_near_full_kv_need_almost_the_whole_pool_on_average():
    workload = made("near-full-kv", options={"kv_tokens": 4096})
    tokens = sum(offer.prompt_tokens + offer.output_tokens for offer in workload.offers)
    assert tokens / (len(workload.offers) / 8) == pytest.approx(0.95 * 4096, rel=0.01)
    assert set(Counter(offer.at for offer in workload.offers).values()) == {8}


def test_bursts_vary_more_than_poisson_and_even_arrivals_do_not_vary():
    bursts = [cv(gaps(made("bursts", seconds=300.0, block=block))) for block in range(4)]
    poisson = [cv(gaps(made("poisson", seconds=300.0, block=block))) for block in range(4)]
    assert min(bursts) > 2 > 1.3 > max(poisson) > min(poisson) > 0.75
    assert cv(gaps(made("poisson", options={"arrivals": "even"}))) == pytest.approx(0, abs=1e-4)
    asked = made("poisson", options={"arrivals": "gamma", "arrival_cv": 0.1}, seconds=300.0)
    assert cv(gaps(asked)) == pytest.approx(0.1, abs=0.03)


def test_means_are_held_and_scaled():
    for scale in (0.5, 2.0):
        workload = made("poisson", length_scale=scale)
        assert statistics.fmean(o.output_tokens for o in workload.offers) == pytest.approx(64 * scale, abs=0.02)
        assert statistics.fmean(o.prompt_tokens for o in workload.offers) == pytest.approx(128 * scale, abs=0.02)


def test_short_lengths_keep_at_least_one_token():
    workload = made("poisson", length_scale=0.02, options={"output_cv": 3.0})
    outputs = [offer.output_tokens for offer in workload.offers]
    assert min(outputs) == 1
    assert sum(outputs) <= 1.28 * len(outputs) + 1


def test_shared_beginnings_are_as_long_as_asked_for():
    workload = made("poisson", options={"shared_prefix_tokens": 40})
    assert {offer.prefix_group for offer in workload.offers} == {"shared"}
    assert [offer.prefix_tokens for offer in workload.offers] == [min(40, o.prompt_tokens) for o in workload.offers]
