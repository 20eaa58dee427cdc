"""Energy counters as Linux shows them, and the rule that voids a run."""

from pathlib import Path

import pytest

from ekiden.evaluation.load.lag import longest_good, void_reason
from ekiden.evaluation.load.meters import Meter
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.workloads.offer import Kind, Offer, Workload


def package(folder: Path, name: str, reading: int, most: int = 1_000_000) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "energy_uj").write_text(f"{reading}\n")
    (folder / name / "max_energy_range_uj").write_text(f"{most}\n")


def test_energy_is_that_of_all_packages_and_survives_a_wrap(tmp_path: Path):
    package(tmp_path, "intel-rapl:0", 900_000)
    package(tmp_path, "intel-rapl:1", 10)
    package(tmp_path, "intel-rapl:0:0", 5)  # a part of the first
    meter = Meter(tmp_path)
    package(tmp_path, "intel-rapl:0", 100_000)
    package(tmp_path, "intel-rapl:1", 300_010)
    package(tmp_path, "intel-rapl:0:0", 999_999)
    assert meter.joules() == pytest.approx(0.2 + 0.3)


def test_energy_that_is_not_measured_is_none(tmp_path: Path):
    assert Meter(tmp_path).joules() is None
    package(tmp_path, "intel-rapl:0", 1)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("")
    assert Meter(tmp_path).joules() is None


def test_a_run_is_void_when_one_in_a_hundred_was_too_late():
    objectives = Objectives(ttft=2.0, tpot=1.0)
    assert void_reason([], objectives) is None
    assert void_reason([0.0] * 99 + [0.5] * 1, objectives) is None, "the p99 of a hundred lies just below the last"
    assert void_reason([0.0] * 97 + [0.5] * 3, objectives) is not None
    reason = void_reason([0.021] * 10, objectives)
    assert reason is not None
    assert "21.0 ms over 10 requests" in reason
    assert "20.0 ms is allowed (1% of the TTFT objective of 2 s)" in reason


def test_the_longest_good_answer_uses_both_objectives_up():
    offers = tuple(Offer(id=str(n), at=0.0, output_tokens=n, max_tokens=n) for n in (1, 11, 5))
    workload = Workload(name="w", kind=Kind.NORMAL, seconds=1.0, offers=offers, made={}, sources={})
    assert longest_good(workload, Objectives(ttft=2.0, tpot=0.5)) == pytest.approx(7.0)
