"""The shadow in virtual time: what it predicts, what it costs, and what it does when it may not compute."""

import pytest

from ekiden.evidence.recorded_controls import controls_at
from ekiden.release.plan import Objectives
from ekiden.release.shadow import MOST_BEHIND, ShadowFollower
from ekiden.state.controls import SetBy
from tests.guessing import Foreseen
from tests.unit.release.world import World

OBJECTIVES = Objectives(ttft=1.0, tpot=0.2)


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, rate=2.5)
    yield world
    world.close()


def follower(world: World, candidate, **options):
    """With processor time that costs nothing, unless it is told otherwise."""
    given = {"now": lambda: world.now, "cpu": lambda: 0.0, "lag": 10.0, **options}
    return ShadowFollower(world.ledger, candidate, OBJECTIVES, **given)


def follow(world: World, shadow: ShadowFollower, seconds: float, *, every: float = 5.0) -> None:
    end = world.now + seconds
    while world.now < end:
        world.advance(every)
        shadow.look()


def test_it_predicts_both_and_knows_its_error(world):
    shadow = follower(world, {"max_num_seqs": 1})
    follow(world, shadow, 60.0)
    report = shadow.report()
    assert report.requests > 80
    assert report.error is not None
    assert report.error < 0.1, "the machine is the model here, so production is simulated as it was"
    assert report.missed_error == pytest.approx(0.0, abs=0.02)
    assert report.production.slo_missed_share is not None
    assert report.candidate.slo_missed_share is not None
    assert report.production.slo_missed_share < 0.1 < 0.5 < report.candidate.slo_missed_share
    assert report.behind_seconds == 0.0
    assert report.seconds == pytest.approx(60.0, abs=12.0)


def test_the_prediction_comes_true(tmp_path):
    """The candidate's world itself, on the same arrivals, misses what the shadow said that it would."""
    world, other = World(tmp_path, rate=2.5), World(tmp_path, rate=2.5, run_id="other", max_num_seqs=2)
    shadow, check = follower(world, {"max_num_seqs": 2}), follower(other, {"max_num_seqs": 8})
    follow(world, shadow, 60.0)
    follow(other, check, 60.0)
    predicted, came = shadow.report().candidate, check.report().recorded
    assert predicted.slo_missed_share == pytest.approx(came.slo_missed_share, abs=0.05)
    assert predicted.ttft_p50 == pytest.approx(came.ttft_p50, rel=0.1)
    world.close()
    other.close()


@pytest.mark.parametrize(("right", "more"), [(0.4, 1.2), (0.9, 1.8)])
def test_guesses_are_as_right_as_they_were(tmp_path, right, more):
    """Production is simulated with the steps that it took, within 1 %; the candidate, without guesses, takes more."""
    drafter = Foreseen(lambda _, count: [0] * count, prompt=40, right=right)
    world = World(tmp_path, rate=0.25, drafter=drafter, lengths=(20, 60))
    shadow = follower(world, {"num_speculative_tokens": 0}, lag=20.0)
    follow(world, shadow, 60.0, every=10.0)
    world.stop_traffic()
    world.advance(40.0)
    world.change({"release": ""}, why="a turn", seconds=None, who="anna")
    shadow.look()
    with world.ledger() as reader:
        steps = sum(turn.p50 > 0 for turn in reader.turns(*reader.bounds()))
    simulated = shadow._world
    assert simulated is not None
    assert simulated.production.outcomes.keys() == simulated.recorded.keys()
    assert simulated.production.runner.steps == pytest.approx(steps, rel=0.01)
    assert simulated.candidate.runner.steps > more * steps
    error = shadow.report().error
    assert error is not None
    assert error < 0.02
    world.close()


def test_memory_is_bounded_by_the_window(world):
    shadow = follower(world, {"max_num_seqs": 4}, window=15.0)
    follow(world, shadow, 60.0)
    kept = shadow._world
    assert kept is not None
    assert len(kept.arrivals) <= 2.5 * 15 * 2
    assert set(kept.recorded) <= {number for _, number in kept.arrivals}
    for arm in kept.arms:
        assert len(arm.outcomes) <= len(kept.arrivals) + 8


def test_it_falls_behind_rather_than_over_its_allowance(world):
    """Each look at the processor's clock costs a millisecond here; 0.4 % of a core is four looks a second."""
    spent = [0.0]

    def cpu() -> float:
        spent[0] += 0.001
        return spent[0]

    shadow = follower(world, {"max_num_seqs": 4}, cpu=cpu, share=0.004)
    follow(world, shadow, 60.0, every=1.0)
    report = shadow.report()
    assert report.cpu_share <= 0.004 + 0.005 / 60, "at most the last piece of work over it"
    assert report.behind_seconds > 10.0
    assert 0 < report.seconds < 40.0


def test_what_cannot_be_made_good_is_skipped_and_said(world):
    shadow = follower(world, {"max_num_seqs": 4})
    follow(world, shadow, 20.0)
    world.stop_traffic()
    world.change({"release": ""}, why="a turn", seconds=None, who="anna")
    world.advance(MOST_BEHIND + 30.0)
    world.change({"release": ""}, why="a turn", seconds=None, who="anna")
    shadow.look()
    report = shadow.report()
    assert report.skipped_seconds > MOST_BEHIND
    assert report.behind_seconds == 0.0


def test_it_begins_anew_when_productions_own_controls_change(world):
    shadow = follower(world, {"max_num_seqs": 2})
    follow(world, shadow, 30.0)
    before = shadow._world
    world.change({"guard": "paged"}, why="-", seconds=None, who="guard:x", set_by=SetBy.SOFTWARE_RULE)
    follow(world, shadow, 5.0)
    assert shadow._world is before, "what nothing obeys changes nothing"
    world.change(
        {"max_num_seqs": 6, "prefill_first": True, "max_queue_seconds": None}, why="-", seconds=None, who="bob"
    )
    follow(world, shadow, 5.0)
    assert shadow._world is not before
    assert shadow._world is not None
    assert (shadow._world.controls.max_num_seqs, shadow._world.controls.prefill_first) == (6, True)


def test_controls_are_read_back_as_they_are(world):
    tenants = {"a": {"weight": 2.0, "tokens_per_second": 50.0}}
    world.change(
        {"tenants": tenants, "target_itl_ms": 80.0, "scheduling_policy": "fair"}, why="-", seconds=None, who="b"
    )
    with world.ledger() as reader:
        read = controls_at(reader, reader.bounds()[1])
    for name in (
        "tenants",
        "target_itl_ms",
        "scheduling_policy",
        "max_queue_seconds",
        "max_num_seqs",
        "ageing_seconds",
    ):
        assert getattr(read, name) == getattr(world.core.controls.now, name), name


def test_nothing_is_told_of_an_empty_ledger(world):
    shadow = follower(world, {"max_num_seqs": 2})
    shadow.look()
    report = shadow.report()
    assert (report.requests, report.error, report.candidate.slo_missed_share) == (0, None, None)
