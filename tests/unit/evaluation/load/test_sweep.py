"""The search for the highest rate, on a subject that is good up to a known one and counts its runs."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ekiden.evaluation.load.sweep import SweepError, next_rate, sweep, wilson
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.results import Answered, ArmRun
from ekiden.evaluation.workloads.offer import Kind, Offer, Workload
from ekiden.measure.figures import RequestRecord
from tests.unit.evaluation.analysis.served import run

OBJECTIVES = Objectives(ttft=1.0, tpot=1.0, attainment=0.9)
REQUESTS = 60


def make(rate: float, index: int) -> Workload:
    offers = tuple(Offer(id=f"{i}", at=i / rate, output_tokens=2, max_tokens=2) for i in range(REQUESTS))
    return Workload(name="w", kind=Kind.NORMAL, seconds=REQUESTS / rate, offers=offers, made={"rate": rate}, sources={})


class Played:
    """Serves a share of requests in time that ``share(rate)`` says, at random."""

    def __init__(self, share: Callable[[float], float], void: str | None = None, fail_after: int | None = None) -> None:
        self.rates: list[float] = []
        self._share, self._void, self._fail_after = share, void, fail_after
        self._chance = random.Random(1)

    def serve(self, workload: Workload, *, on_answer: Callable[[], None] = lambda: None) -> ArmRun:
        if self._fail_after == len(self.rates):
            raise KeyboardInterrupt
        rate = workload.made["rate"]
        self.rates.append(rate)
        results = []
        for offer in workload.offers:
            ttft = 0.5 if self._chance.random() < self._share(rate) else 5.0
            times = [offer.at + ttft, offer.at + ttft + 0.1]
            record = RequestRecord(intended=offer.at, sent=offer.at, event_times=times, output_tokens=2)
            results.append(Answered(id=offer.id, record=record))
            on_answer()
        return run(results, seconds=workload.seconds, arrival_seconds=workload.seconds, void=self._void)

    def close(self) -> None:
        """Nothing is open."""


def until(limit: float) -> Callable[[float], float]:
    return lambda rate: 1.0 if rate <= limit else 0.2


def test_doubling_then_bisection_find_the_limit():
    played = Played(until(11.0))
    found = sweep(played, make, OBJECTIVES, first=1.0, precision=0.05)
    assert found.highest is not None
    assert 11.0 / 1.06 < found.highest <= 11.0
    assert played.rates[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert len(played.rates) == len(found.points), "each point was clear after one run"
    assert [point.rate for point in found.points] == sorted(played.rates)
    held = [point for point in found.points if point.holds]
    assert all(point.goodput == pytest.approx(point.rate) for point in held)
    assert all(point.p99_ttft is None for point in found.points), "60 values carry no p99"


def test_a_first_rate_that_fails_is_halved():
    found = sweep(Played(until(0.3)), make, OBJECTIVES, first=4.0, precision=0.2)
    assert found.highest is not None
    assert 0.3 / 1.21 < found.highest <= 0.3


def test_a_subject_that_is_never_good_has_no_highest_rate():
    played = Played(lambda rate: 0.0)
    assert sweep(played, make, OBJECTIVES, first=1.0).highest is None
    assert len(played.rates) < 30


def test_a_point_that_is_not_clear_is_measured_again_up_to_the_cap():
    played = Played(lambda rate: 0.9 if rate == 1.0 else 0.0)
    found = sweep(played, make, OBJECTIVES, first=1.0, precision=1.5, runs=4)
    first = found.points[0]
    assert played.rates.count(1.0) == first.runs == 4
    assert not first.decided
    assert first.low < 0.9 < first.high
    assert first.offered == 4 * REQUESTS
    assert played.rates.count(2.0) == 1


def test_a_point_with_enough_values_tells_its_p99():
    found = sweep(Played(lambda rate: 0.9), make, OBJECTIVES, first=1.0, precision=9.0, runs=5)
    assert found.points[0].p99_ttft == pytest.approx(5.0)


def test_a_stopped_sweep_goes_on_and_measures_nothing_again(tmp_path: Path):
    state = tmp_path / "sweep.jsonl"
    whole = sweep(Played(until(11.0)), make, OBJECTIVES, first=1.0)
    with pytest.raises(KeyboardInterrupt):
        sweep(Played(until(11.0), fail_after=3), make, OBJECTIVES, first=1.0, state=state)
    with state.open("ab") as file:  # its writer was killed in the middle of a line
        file.write(b'{"rate": 8.0, "ind')
    rest = Played(until(11.0))
    found = sweep(rest, make, OBJECTIVES, first=1.0, state=state)
    assert rest.rates[0] == 8.0
    assert [point.rate for point in found.points] == [point.rate for point in whole.points]
    assert found.highest == whole.highest
    nothing = Played(until(11.0))
    assert sweep(nothing, make, OBJECTIVES, first=1.0, state=state) == found
    assert nothing.rates == []


def test_the_state_of_another_sweep_is_refused(tmp_path: Path):
    state = tmp_path / "sweep.jsonl"
    sweep(Played(until(2.0)), make, OBJECTIVES, first=1.0, state=state, made_with={"batching": "static"})
    with pytest.raises(SweepError, match="another sweep"):
        sweep(Played(until(2.0)), make, OBJECTIVES, first=1.0, state=state, made_with={"batching": "continuous"})
    state.write_bytes(state.read_bytes() + b"no json\n")
    with pytest.raises(SweepError, match="no run"):
        sweep(Played(until(2.0)), make, OBJECTIVES, first=1.0, state=state, made_with={"batching": "static"})


def test_void_runs_are_not_counted_and_end_the_sweep_when_they_do_not_stop():
    played = Played(until(2.0), void="the generator was late")
    with pytest.raises(SweepError, match=r"3 runs at 1 requests/s were void.*the generator was late"):
        sweep(played, make, OBJECTIVES, first=1.0)
    assert len(played.rates) == 3


def test_the_next_rate_ignores_luck_above_a_failure():
    assert next_rate({1.0: True, 2.0: False, 4.0: True}, first=1.0, precision=0.1) == pytest.approx(2**0.5)
    assert next_rate({1.0: True, 1.05: False}, first=1.0, precision=0.1) is None


def test_the_interval_is_wilsons():
    # Worked out by hand for 18 of 20 and z = 1.959964: centre 0.83554, half width 0.13654.
    assert wilson(18, 20) == pytest.approx((0.69897, 0.97213), abs=2e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_chart_has_goodput_and_attainment_against_the_rate():
    chart = sweep(Played(until(3.0)), make, OBJECTIVES, first=1.0).chart("continuous")
    assert chart.kind == "goodput_rate"
    goodput, attainment = chart.curves
    assert goodput.x == attainment.x == sorted(goodput.x)
    assert len(attainment.low) == len(attainment.high) == len(attainment.y)
