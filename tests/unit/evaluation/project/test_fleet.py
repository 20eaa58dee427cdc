"""Fleets in virtual time: one is an engine, two at twice the rate are two engines, and routers do as they say."""

from typing import Any

import msgspec
import pytest

from ekiden.evaluation.load.simulated_subject import SimulatedSubject, simulated_prompts
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.project.fleet import FleetRun, Replica, serve_fleet
from ekiden.evaluation.project.projection import Projector, fewest
from ekiden.evaluation.project.routers import ROUTERS, LeastOutstanding, PrefixAffinity, RoundRobin
from ekiden.evaluation.workloads.offer import Workload
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams
from tests.unit.evaluation.project.fleets import PROFILE, twice
from tests.unit.evaluation.simulated_arms import OBJECTIVES, workload


def served(offered: Workload, replicas: int, router: str = "round-robin", **changed: Any) -> FleetRun:
    config = PROFILE.config(changed)
    engines = [Replica(config, PROFILE.speed, PROFILE.info) for _ in range(replicas)]
    prompts = simulated_prompts(offered, vocab_size=PROFILE.model.vocab_size)
    return serve_fleet(engines, ROUTERS[router](), offered, prompts)


@pytest.mark.parametrize("batching", ["continuous", "static", "window", "sequential"])
def test_a_fleet_of_one_is_an_engine(batching: str) -> None:
    offered = workload(rate=12.0, stated=None)
    alone = SimulatedSubject(
        PROFILE.config({"batching": batching}), PROFILE.speed, info=PROFILE.info, tokens="zeros"
    ).serve(offered)
    fleet = served(offered, 1, batching=batching)
    assert [each.record for each in fleet.results] == [each.record for each in alone.results]
    assert fleet.seconds == alone.seconds
    assert alone.steps is not None
    assert fleet.replicas[0].steps == alone.steps.steps


def test_two_replicas_at_twice_the_rate_are_two_engines() -> None:
    offered = workload(rate=12.0)
    one, two = served(offered, 1), served(twice(offered), 2)
    times = [each.record.event_times for each in one.results]
    assert [each.record.event_times for each in two.results[::2]] == times
    assert [each.record.event_times for each in two.results[1::2]] == times
    assert [share.requests for share in two.replicas] == [40, 40]
    assert two.replicas[0].output_tokens == one.replicas[0].output_tokens


def test_twice_the_load_on_twice_the_replicas_attains_about_as_much() -> None:
    small, large = workload(150, rate=12.0, seed=2), workload(300, rate=24.0, seed=3)
    one = Projector(PROFILE, [small], OBJECTIVES).fleet(1)
    two = Projector(PROFILE, [large], OBJECTIVES).fleet(2)
    assert one.tpot is not None
    assert two.tpot is not None
    assert two.tpot["p50"] == pytest.approx(one.tpot["p50"], rel=0.15)
    assert two.output_tokens_per_second == pytest.approx(2 * one.output_tokens_per_second, rel=0.2)
    assert two.attainment >= one.attainment - 0.05
    assert (two.requests, len(two.busy)) == (300, 2)


def request(number: int, *tokens: int) -> Request:
    sampling = SamplingParams(max_tokens=1)
    return Request(request_id=str(number), prompt_token_ids=tokens or (number,), sampling=sampling, arrival_time=0.0)


def test_routers_choose_as_they_say() -> None:
    turns = RoundRobin()
    assert [turns.choose(request(number), [9, 0, 0]) for number in range(4)] == [0, 1, 2, 0]
    least = LeastOutstanding()
    assert [least.choose(request(0), counts) for counts in ([2, 1, 1], [2, 1, 1], [0, 3, 3])] == [1, 2, 0]
    near = PrefixAffinity()
    shared = tuple(range(32))
    home = near.choose(request(0, *shared, 1), [5, 0, 5])
    assert home == 1
    assert near.choose(request(1, *shared, 2), [0, 3, 0]) == 1
    assert near.choose(request(2, *shared, 3), [0, 9, 0]) != 1


def test_a_router_hears_of_an_end_when_the_step_has_ended() -> None:
    """All requests that come while one is computed go to the other replica, and the next one after its end does not."""
    offers = workload(4).offers
    times = [0.0, 0.005, 0.006, 5.0]
    offered = workload(4)
    few = tuple(
        msgspec.structs.replace(offer, at=at, output_tokens=1, max_tokens=1)
        for offer, at in zip(offers, times, strict=True)
    )
    run = served(msgspec.structs.replace(offered, offers=few), 2, "least-outstanding")
    assert [share.requests for share in run.replicas] == [2, 2]
    assert run.results[3].record.ttft == pytest.approx(
        0.010 + 0.0005 * few[3].prompt_tokens + 1e-8 * few[3].prompt_tokens * (few[3].prompt_tokens // 2)
    )


@pytest.mark.parametrize(("threshold", "most", "found"), [(1, 8, 1), (5, 8, 5), (8, 8, 8), (9, 8, None), (6, 6, 6)])
def test_the_fewest_is_found_and_nothing_asked_twice(threshold: int, most: int, found: int | None) -> None:
    asked: list[int] = []

    def suffices(count: int) -> bool:
        asked.append(count)
        return count >= threshold

    assert fewest(suffices, most) == found
    assert len(asked) == len(set(asked)) <= 7


def test_the_replicas_that_a_rate_needs() -> None:
    offered = workload(80, rate=60.0)
    told, figures = Projector(PROFILE, [offered], Objectives(ttft=0.3, tpot=0.03, attainment=0.95)).needed(most=8)
    assert told.replicas is not None
    assert 2 <= told.replicas <= 8
    assert figures.replicas == told.replicas
    shares = dict(told.tried)
    assert shares[told.replicas] >= 0.95 > shares[told.replicas - 1]
    never, largest = Projector(PROFILE, [offered], Objectives(ttft=0.001, tpot=0.03)).needed(most=2)
    assert (never.replicas, largest.replicas) == (None, 2)


def test_what_a_fleet_refuses_counts_as_bad() -> None:
    limited = msgspec.structs.replace(PROFILE, limits={"max_num_queued_reqs": 1})
    figures = Projector(limited, [workload(100, rate=200.0)], OBJECTIVES).fleet(1)
    refused = figures.failures["refused_queue_full_requests"]
    assert refused > 0
    assert round(100 * figures.attainment) <= 100 - refused
