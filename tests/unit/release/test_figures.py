"""What a block gave, and what pairs of blocks say at the horizon."""

import pytest

from ekiden.release.analysis import AnalysisPhase, PairFigures, at_the_horizon, looked_at
from ekiden.release.exposure import Switchback
from ekiden.release.figures import METRICS, BlockFigures, block_figures, part_of
from ekiden.release.state import ArmName
from tests.unit.release.world import World, plan_with


def block(missed: int, offered: int = 100, **more) -> BlockFigures:
    return BlockFigures(seconds=10.0, offered=offered, missed=missed, **more)


def pairs(*counts: tuple[int, int]) -> dict[int, PairFigures]:
    return {n: PairFigures(candidate=block(a), baseline=block(b)) for n, (a, b) in enumerate(counts)}


ALIKE = ((3, 4), (5, 3), (2, 2), (4, 5), (3, 2), (4, 4))


def test_alike_is_successful_within_the_margin():
    run = at_the_horizon(plan_with(), pairs(*ALIKE))
    assert run.phase is AnalysisPhase.SUCCESSFUL
    assert run.metric_results[0].value == pytest.approx(0.0017, abs=0.001)


def test_a_clearly_worse_one_fails_and_a_doubtful_one_is_inconclusive():
    worse = pairs(
        *((base + 25 - 60 * (n == 5), base + 10 * (n == 5)) for n, base in enumerate((30, 31, 29, 30, 32, 40)))
    )
    assert looked_at(plan_with(), list(worse.values())[:4]).phase is AnalysisPhase.RUNNING, "four pairs cannot show it"
    assert looked_at(plan_with(), list(worse.values())[:5]).phase is AnalysisPhase.FAILED
    doubtful = pairs((20, 2), (3, 4), (25, 5), (2, 3), (30, 4), (3, 4))
    run = at_the_horizon(plan_with(), doubtful)
    assert run.phase is AnalysisPhase.INCONCLUSIVE
    assert "of which not all meets result <= 0.1" in run.message


def test_what_was_never_seen_is_not_ruled_out_by_few_requests():
    none = pairs(*[(0, 0)] * 6)
    missed = at_the_horizon(plan_with(), none).metric_results[0]
    assert missed.high == pytest.approx(1 - 0.05 ** (1 / 600))
    assert missed.low == pytest.approx(-(1 - 0.05 ** (1 / 600)))
    few = {n: PairFigures(candidate=block(0, 5), baseline=block(0, 5)) for n in range(6)}
    run = at_the_horizon(plan_with(), few)
    assert [each.phase for each in run.metric_results] == [AnalysisPhase.SUCCESSFUL, AnalysisPhase.INCONCLUSIVE]
    assert run.metric_results[1].high == pytest.approx(0.095, abs=1e-3), "30 requests cannot show less than 5 %"


def test_a_metric_without_data_is_an_error():
    plan = plan_with(
        failureCondition='"result > 0.1"\n[[metrics]]\nname = "tpot_p50"\nsuccessCondition = "result < 1.1"'
    )
    run = at_the_horizon(plan, pairs(*ALIKE))
    assert run.phase is AnalysisPhase.ERROR
    assert "tpot_p50" in run.message


def test_parts_of_metrics():
    seen = block(10, refused=4, failed=1, ttft=[0.1, 0.2, 0.4])
    values = {name: METRICS[name].pooled([part]) for name in METRICS if (part := part_of(name, seen)) is not None}
    assert values["slo_missed_share"] == pytest.approx(0.10)
    assert values["refused_share"] == pytest.approx(0.04)
    assert values["error_share"] == pytest.approx(0.01)
    assert values["goodput_per_second"] == pytest.approx(9.0)
    assert values["ttft_p50"] == pytest.approx(0.2)
    assert "tpot_p50" not in values
    assert part_of("slo_missed_share", block(0, offered=0)) is None


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    yield world
    world.close()


def counted(world: World, start: float, end: float, **options):
    given = {"burn_in": 0.0, "drain": 0.0, "settle": 5.0, "ttft": 1.0, "tpot": 0.2, **options}
    with world.ledger() as reader:
        return block_figures(reader, start=round(start * 1e6), end=round(end * 1e6), **given)


def test_every_request_of_a_block_counts_once(world):
    world.advance(60.0)
    whole, halves = counted(world, 0.0, 30.0), [counted(world, 0.0, 15.0), counted(world, 15.0, 30.0)]
    assert whole is not None
    assert whole.offered == sum(each.offered for each in halves if each is not None) > 60
    with world.ledger() as reader:
        assert whole.offered == sum(row.arrival < 30e6 for row in reader.all_requests())
    assert len(whole.ttft) == whole.offered
    inner = counted(world, 0.0, 30.0, burn_in=5.0, drain=5.0)
    assert inner is not None
    assert (inner.seconds, inner.offered < whole.offered) == (20.0, True)


def test_a_block_is_not_settled_before_its_end_or_while_something_of_it_runs(tmp_path):
    world = World(tmp_path, rate=6.0)
    world.advance(10.0)
    assert counted(world, 0.0, 12.0) is None
    world.advance(2.05)
    assert counted(world, 0.0, 12.0, settle=60.0) is None, "what arrived at the end still runs"
    settled = counted(world, 0.0, 12.0, settle=0.0)
    assert settled is not None
    assert settled.unfinished > 0
    assert settled.missed >= settled.unfinished
    world.close()


def test_refusals_for_want_of_room_are_missed_and_a_clients_own_faults_are_left_out(world):
    world.change({"max_num_queued_reqs": 1, "max_num_seqs": 1}, why="-", seconds=None, who="anna")
    world.advance(21.0)
    figures = counted(world, 0.0, 20.0, settle=0.0)
    assert figures is not None
    assert figures.refused > 10
    assert figures.missed >= figures.refused
    before = figures.offered
    with world.ledger() as reader:
        rows = reader.requests_arrived(0, 20_000_000)
    assert before == len(rows)


def test_the_coin_is_fair_and_falls_the_same_way_again():
    plan = plan_with()
    exposure = Switchback(None, plan, "digest", {})  # type: ignore[arg-type]  # no server is asked
    orders = [exposure.order(pair, 0) for pair in range(400)]
    assert orders == [exposure.order(pair, 0) for pair in range(400)]
    assert 160 < sum(first is ArmName.CANDIDATE for first, _ in orders) < 240
    assert all(set(order) == set(ArmName) for order in orders)
    assert [exposure.order(pair, 1) for pair in range(400)] != orders
