"""A request whose deadline cannot be met is refused at once, or as soon as it is certain; nobody else is."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekiden.config import LimitsConfig
from ekiden.engine.step_time import StepTimeModel
from ekiden.evidence.decision_replay import replay
from ekiden.evidence.explain import explain
from ekiden.evidence.why import Question, why
from ekiden.guardrails.abstention import MAX_LOOKS, Abstention
from ekiden.guardrails.signals import P10_SCORE, ServiceRate, gamma_quantile
from ekiden.state.controls import ControlChange, SetBy
from ekiden.state.policy import StepLoad
from ekiden.state.request import Carried, Estimate, Finish, FinishReason, Refusal, RefusalReason, Request
from tests.unit.evidence.directed import BASE, PER_PREFILL_TOKEN, PER_ROW, Directed


def warm(**settings: Any) -> Directed:
    """An idle engine that has seen enough steps to know what they cost: 11 ms for a token, 1 ms for one of a prompt."""
    world = Directed(**settings)
    for number, prompt in enumerate((8, 40, 64, 90)):
        world.submit(f"warm-{number}", prompt=prompt, output=20)
        world.run()
    return world


def refusal_of(world: Directed, name: str) -> Refusal | None:
    return next((u.refusal for u in world.updates if u.request_id == name and u.refusal is not None), None)


def end_of(world: Directed, name: str) -> Finish:
    return next(u.finish for u in world.updates if u.request_id == name and u.finish is not None)


def test_a_deadline_that_no_engine_could_meet_is_refused_at_once_with_the_estimate() -> None:
    world = warm()
    before = world.core.stats().steps_total
    world.submit("lone", prompt=64, output=101, deadline=0.9)
    world.step()
    refusal = refusal_of(world, "lone")
    assert refusal is not None
    assert refusal.reason is RefusalReason.DEADLINE_TOO_SHORT
    assert refusal.retry_after is None
    assert refusal.estimate is not None
    truth = BASE + PER_ROW + 64 * PER_PREFILL_TOKEN + 100 * (BASE + PER_ROW)
    least, usual, slow = refusal.estimate.end
    assert 0.9 < least <= usual <= slow
    assert least == pytest.approx(truth, rel=0.05)
    assert usual == pytest.approx(truth, rel=0.15)
    assert refusal.estimate.alone == pytest.approx(least)
    assert refusal.estimate.first_token[0] < 0.1
    assert "the deadline is in 0.90 s and the answer would take at least 1." in refusal.message
    assert world.core.stats().steps_total == before, "no step was spent on it"


@pytest.mark.parametrize("spare", [1.02, 1.5])
def test_a_deadline_that_can_just_be_met_is_taken_and_met(spare: float) -> None:
    world = warm()
    truth = BASE + PER_ROW + 64 * PER_PREFILL_TOKEN + 100 * (BASE + PER_ROW)
    world.submit("lone", prompt=64, output=101, deadline=truth * spare)
    world.run()
    assert end_of(world, "lone").reason is FinishReason.LENGTH


def test_a_cold_engine_refuses_nobody() -> None:
    world = Directed()
    world.submit("first", prompt=64, output=101, deadline=0.1)
    world.run()
    assert end_of(world, "first").reason is FinishReason.DEADLINE


def busy(**settings: Any) -> Directed:
    """One slot with a queue behind it that has moved for a while."""
    world = warm(max_num_seqs=1, **settings)
    for number in range(30):
        world.submit(f"before-{number}", output=20)
    world.step(20 * 12)
    return world


def test_a_deadline_that_comes_before_its_turn_is_refused_with_when_to_come_back() -> None:
    world = busy()
    world.submit("late", output=4, deadline=1.0)
    world.step()
    refusal = refusal_of(world, "late")
    assert refusal is not None
    assert refusal.reason is RefusalReason.DEADLINE_TOO_BUSY
    assert refusal.estimate is not None
    assert refusal.estimate.wait[0] > 1.0
    assert refusal.estimate.alone is not None
    assert refusal.estimate.alone < 0.1
    assert refusal.retry_after == pytest.approx(max(1.0, refusal.estimate.end[0] - 1.0))
    assert "in the queue" in refusal.message
    truth = sum(not s.admission for s in world.core.population.by_id.values()) * 20 * (BASE + PER_ROW)
    assert refusal.estimate.wait[0] < truth < refusal.estimate.wait[2]


def test_one_that_waits_is_given_up_when_it_has_become_hopeless_and_before_its_deadline() -> None:
    world = warm(max_num_seqs=1)
    world.submit("long", output=400)
    world.step(2)
    world.submit("hopeful", output=40, deadline=2.0)  # nothing is known of how long "long" is
    asked = world.now
    world.run()
    end = end_of(world, "hopeful")
    assert end.reason is FinishReason.ABSTAINED
    assert end.admitted_time is None
    assert end.estimate is not None
    # Its own work takes 0.45 s.
    assert 1.2 < end.finish_time - asked < 1.7
    assert end.estimate.end[0] > end.estimate.left > 0.0
    assert end_of(world, "long").reason is FinishReason.LENGTH
    assert world.core.stats().finished_total["abstained"] == 1


def test_one_that_takes_a_part_of_the_answer_needs_only_its_first_token_in_time() -> None:
    world = warm()
    world.submit("whole", prompt=64, output=101, deadline=0.9)
    world.submit("part", prompt=64, output=101, deadline=0.9, takes_partial=True)
    world.submit("nothing", prompt=64, output=101, deadline=0.05, takes_partial=True)
    world.run()
    assert refusal_of(world, "whole") is not None
    assert end_of(world, "part").reason is FinishReason.DEADLINE
    assert end_of(world, "part").num_output_tokens > 50
    refusal = refusal_of(world, "nothing")
    assert refusal is not None
    assert "the first token would take" in refusal.message


def test_it_can_be_switched_off_while_the_engine_runs() -> None:
    world = warm(max_num_seqs=1)
    world.submit("waits", output=4, deadline=1.0)
    world.submit("long", output=200)
    for abstain in (False, True):
        world.core.set_controls(ControlChange(values={"abstain": abstain}, set_by=SetBy.PERSON, who="anna"))
        world.submit(f"asked {abstain}", output=101, deadline=0.9)
        world.step()
    assert refusal_of(world, "asked False") is None
    assert refusal_of(world, "asked True") is not None
    world.run()
    assert end_of(world, "asked False").reason is FinishReason.DEADLINE
    assert LimitsConfig().abstain


def test_a_request_that_an_earlier_engine_had_taken_is_never_refused() -> None:
    world = warm()
    world.submit("carried", output=101, deadline=0.5, carried=Carried())
    world.run()
    assert end_of(world, "carried").reason is FinishReason.DEADLINE


def test_a_deadline_that_is_past_is_a_deadline_that_is_past() -> None:
    world = warm()
    world.submit("past", deadline=-1.0)
    world.run()
    assert end_of(world, "past").reason is FinishReason.DEADLINE


def test_an_answer_that_may_end_by_itself_counts_one_token_until_ten_of_its_tenant_are_known() -> None:
    world = warm()
    open_ended = {"ignore_eos": False}
    world.submit("unknown", output=200, deadline=0.5, tenant="t", sampling=open_ended)
    world.run()
    assert refusal_of(world, "unknown") is None
    for number in range(10):
        world.submit(f"t-{number}", output=150, tenant="t")
        world.run()
    world.submit("known", output=200, deadline=0.5, tenant="t", sampling=open_ended)
    world.run()
    refusal = refusal_of(world, "known")
    assert refusal is not None
    assert refusal.estimate is not None
    assert refusal.estimate.end[0] == pytest.approx(150 * (BASE + PER_ROW), rel=0.1)


def test_prompts_that_come_first_count_and_those_that_share_blocks_count_once() -> None:
    long = (3,) * 800
    for caching, refused in ((True, False), (False, True)):
        world = warm(prefix_caching=caching, num_blocks=600)
        for number in range(6):
            world.submit(f"long-{number}", tokens=(*long, number), output=2)
        world.submit("next", tokens=(*long, 9), output=2, deadline=2.5)
        world.run()
        assert (refusal_of(world, "next") is not None) == refused


# --- what is recorded


@pytest.mark.parametrize("caching", [False, True])
def test_refusals_are_recorded_explained_and_replayed(caching: bool, tmp_path: Path) -> None:
    world = busy(prefix_caching=caching)
    shared = (5,) * 60
    for number in range(6):
        world.submit(f"shared-{number}", tokens=(*shared, number), output=20, deadline=0.3 * (number + 1))
        world.step(5)
    world.submit("long", output=400)
    world.submit("hopeful", output=20, deadline=7.0)
    world.run()
    gone = world.core.stats()
    assert gone.refused_total["deadline_too_busy"] >= 2
    assert gone.finished_total["abstained"] >= 1
    given_up = next(u.request_id for u in world.updates if u.finish and u.finish.reason is FinishReason.ABSTAINED)
    refused = next(u for u in world.updates if u.refusal is not None)
    with world.stored(tmp_path) as reader:
        result = replay(reader.header, reader.everything())
        assert result.difference is None
        ends = Counter(end.reason for end in reader.all_ends())
        assert ends["abstained"] == gone.finished_total["abstained"]
        assert ends["refused"] == sum(gone.refused_total.values())
        (row,) = reader.requests_named(refused.request_id)
        assert refused.refusal is not None
        told = explain(reader, row)
        assert told.status == "refused"
        assert told.headline == f"Refused (deadline_too_busy): {refused.refusal.message}"
        answer = why(reader, row, Question.REFUSED)
        assert answer.facts["limit"] == "abstain"
        assert answer.facts["limit_value"] == "on"
        estimate = refused.refusal.estimate
        assert estimate is not None
        assert answer.facts["estimate"]["deadline"] == estimate.left
        assert answer.facts["estimate"]["end"] == dict(zip(("p10", "p50", "p90"), estimate.end, strict=True))
        (row,) = reader.requests_named(given_up)
        told = explain(reader, row)
        assert told.reason == "abstained"
        assert told.estimate is not None, "accepted ones have theirs too"
        assert "Given up because its deadline could no longer be met (it still waits" in told.headline
        answer = why(reader, row, Question.TRUNCATED)
        assert "It never ran" in answer.words
        assert answer.facts["estimate"]["end"]["p10"] > answer.facts["estimate"]["deadline"]


def test_a_replay_under_another_rule_differs(tmp_path: Path) -> None:
    """So the comparison above can fail."""
    world = warm()
    world.submit("lone", output=101, deadline=0.5)
    world.run()
    with world.stored(tmp_path) as reader:
        turns = list(reader.everything())
        header = reader.header
    header.limits["abstain"] = False
    assert replay(header, turns).difference is not None
    del header.limits["abstain"]  # a run of an earlier version, which never abstained
    assert replay(header, turns).difference is not None


# --- what it costs


def test_those_that_wait_are_looked_at_a_few_times_each_and_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, looks, most = 200, 0, 0
    estimate = Abstention.estimate

    def counted(self: Abstention, *arguments: Any) -> Estimate:
        nonlocal looks
        looks += 1
        return estimate(self, *arguments)

    world = warm(max_num_seqs=1)
    world.submit("long", output=2000)
    world.step(2)
    for number in range(waiting):
        world.submit(f"w-{number}", output=10, deadline=10.0)
    world.step()
    monkeypatch.setattr(Abstention, "estimate", counted)
    steps = total = 0
    while world.core.population.queued:
        looks = 0
        world.step()
        steps, total, most = steps + 1, total + looks, max(most, looks)
    assert steps > 800
    assert 0 < most <= MAX_LOOKS
    assert waiting < total < 30 * waiting
    ended = world.core.stats().finished_total
    assert ended["abstained"] > waiting // 2
    assert ended["abstained"] + ended["deadline"] == waiting, "those whose last look came too late"


# --- the parts of the estimate


def test_quantiles_of_the_gamma_distribution() -> None:
    """Against scipy.stats.gamma.ppf."""
    known = {1: (0.1054, 2.3026), 2: (0.5318, 3.8897), 5: (2.4326, 7.9936), 20: (14.525, 25.903), 100: (87.42, 113.0)}
    for shape, (p10, p90) in known.items():
        assert gamma_quantile(shape, -P10_SCORE) == pytest.approx(p10, rel=0.07)
        assert gamma_quantile(shape, P10_SCORE) == pytest.approx(p90, rel=0.07)


def test_the_service_rate_is_measured_only_while_somebody_is_held_back() -> None:
    rate = ServiceRate()
    for second in range(10):
        rate.observe(joined=1, held=False, now=float(second))
    assert rate.seconds_for(1) is None, "these joined when they came"
    rate.observe(joined=0, held=True, now=10.0)
    assert rate.seconds_for(1) is None, "nobody has joined since"
    for second in range(11, 31):
        rate.observe(joined=2 if second % 2 else 0, held=True, now=float(second))
    least, usual, most = rate.seconds_for(20) or (0.0, 0.0, 0.0)
    assert least < usual < most
    assert usual == pytest.approx(20.0, rel=0.15)
    assert least < 12.0, "ten pairs are ten events and not twenty"


def observed(slope: float, *, steps: int = 200) -> StepTimeModel:
    model = StepTimeModel()
    for number in range(steps):
        load = StepLoad(1 + number % 8, 100 * (1 + number % 8), 16 * (number % 3), 16 * 16 * (number % 3))
        model.observe(load, slope * (0.01 + 0.001 * load.decode_rows + 0.0005 * load.prefill_tokens))
    return model


@given(slope=st.floats(0.02, 20.0))
@settings(max_examples=20, deadline=None)
def test_the_least_time_of_a_step_is_near_the_truth_where_it_is_known_and_nothing_where_it_is_not(slope: float) -> None:
    model, load = observed(slope), StepLoad(decode_rows=4, decode_context=400)
    truth = slope * 0.014
    assert model.least(load) <= truth * 1.01
    assert truth < 0.005 or model.least(load) > truth * 0.8
    unlike = StepLoad(prefill_tokens=512, prefill_pairs=4096 * 4096)
    assert model.least(unlike) <= slope * (0.01 + 0.0005 * 512) * 1.05, "pairs cost nothing here, and it guessed 1.7 s"
    assert observed(slope, steps=23).least(load) == 0.0


@given(
    order=st.sampled_from(["fcfs", "priority", "deadline", "fair"]),
    asked=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([None, 5.0, 50.0]), st.sampled_from("ab"))),
)
@settings(max_examples=40, deadline=None)
def test_those_ahead_in_the_queue_are_those_that_join_before(
    order: str, asked: list[tuple[int, float | None, str]]
) -> None:
    world = Directed(max_num_seqs=1, scheduling_policy=order, limits=LimitsConfig(abstain=False))
    world.submit("runs", output=50)
    world.step(2)
    for number, (priority, deadline, tenant) in enumerate(asked):
        world.wait(0.01)
        world.submit(f"r{number}", priority=priority, deadline=deadline, tenant=tenant)
    world.step()
    queue = world.core.population.waiting
    for place, sequence in enumerate(queue.first(100)):
        ahead = queue.num_ahead(sequence)
        assert ahead == place if order != "fair" else ahead <= place


def test_requests_without_deadlines_are_never_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    def estimate(self: Abstention, *arguments: Any) -> Estimate:
        raise AssertionError("nobody asked")

    monkeypatch.setattr(Abstention, "estimate", estimate)
    world = busy()
    made: list[Request] = [world.submit(f"r{number}", output=40) for number in range(20)]
    world.run()
    assert all(end_of(world, request.request_id).reason is FinishReason.LENGTH for request in made)
