"""The whole outcome from runs: it can be stored and read back, names what is void, and is exploratory once touched."""

import msgspec
import pytest

from ekiden.evaluation.analysis.analyse import analyse, exit_status
from ekiden.evaluation.analysis.comparing import Comparisons
from ekiden.evaluation.analysis.metrics import METRICS
from ekiden.evaluation.analysis.verdict import metric_outcomes
from ekiden.evaluation.outcome import ExitStatus, Label, Outcome, Phase, Verdict
from ekiden.evaluation.plan.model import WorkloadSpec
from ekiden.evaluation.workloads.offer import Kind
from tests.unit.evaluation.analysis.made import Served, plan, runs

EQUAL = {"continuous": Served(), "static": Served(), "window": Served()}
SLOW = {"continuous": Served(), "static": Served(pace=1.7), "window": Served(pace=1.6)}


def evaluation(chat, *, seed=1):
    return [
        *runs(chat, seed=seed, workloads=["chat"], requests=20),
        *runs(EQUAL, seed=seed + 1, workloads=["equal"], requests=20),
    ]


@pytest.fixture(scope="module")
def adopted() -> Outcome:
    made = evaluation(SLOW)
    return analyse(
        plan(),
        made,
        label=Label.CONFIRMATORY,
        made={"chat": {"source": "azure", "seed": 1}},
        registration={"digest": "abc"},
        lineage={"ekiden": "0"},
    )


def test_the_outcome_reads_back_as_it_was_written(adopted):
    assert msgspec.json.decode(msgspec.json.encode(adopted), type=Outcome) == adopted


def test_every_part_of_the_outcome_is_filled(adopted):
    assert adopted.verdict is Verdict.ADOPT, adopted.summary
    assert exit_status(adopted) is ExitStatus.ADOPT
    assert {figures.arm for figures in adopted.figures} == {"continuous", "static", "window"}
    assert {outcome.metric for outcome in adopted.metrics} <= set(adopted.formulas) | set(METRICS)
    assert len(adopted.blocks_needed) == len(adopted.blocks_needed_ja) > 0
    assert len(adopted.noise) >= 3
    assert len(adopted.answers) == 7
    assert set(adopted.limits) == {"en", "ja"}
    assert [workload["blocks"] for workload in adopted.workloads] == [8, 8]
    assert adopted.workloads[0]["made"] == {"source": "azure", "seed": 1}
    assert adopted.registration == {"digest": "abc"}


def test_void_runs_are_named_and_their_blocks_count_for_nothing():
    made = evaluation(EQUAL)
    made[0].void = "sent 30 ms late"
    outcome = analyse(plan(), made, label=Label.CONFIRMATORY)
    assert outcome.void == [f"{made[0].arm} on chat, block 0, place 0: sent 30 ms late"]
    touched = [one for one in outcome.metrics if one.judged and made[0].arm in (one.candidate, one.baseline)]
    assert {one.comparison.blocks for one in touched} == {7}
    assert {one.phase for one in touched} == {Phase.INCONCLUSIVE}, "all eight blocks were wanted"


def test_an_evaluation_that_was_tampered_with_is_exploratory():
    outcome = analyse(plan(), evaluation(SLOW), label=Label.CONFIRMATORY, integrity=["the plan was edited"])
    assert outcome.label is Label.EXPLORATORY
    assert outcome.integrity == ["the plan was edited"]


def test_the_gain_is_drawn_against_how_much_output_lengths_vary():
    series = [
        WorkloadSpec(name=f"cv{number}", source="length-variance", kind=Kind.MISLEADING, seconds=10, rate=2)
        for number in range(2)
    ]
    made = evaluation(EQUAL) + runs(SLOW, seed=3, workloads=["cv0", "cv1"])
    for run in made:
        for number, answer in enumerate(run.results):
            if run.workload == "cv1":
                answer.output_tokens = 2 if number % 2 else 6
    given = plan(workloads=[*plan().workloads, *series])
    chart = next(one for one in analyse(given, made, label=Label.EXPLORATORY).charts if one.kind == "gain_variance")
    assert [curve.name for curve in chart.curves] == ["static", "window"]
    for curve in chart.curves:
        assert curve.x == [0, 0.5]
        assert all(low < y < high for low, y, high in zip(curve.low, curve.y, curve.high, strict=True))


def test_each_planted_fault_turns_the_verdict_by_the_real_metrics():
    faults = {
        "tokens_equal": {**SLOW, "continuous": Served(wrong_from=15)},
        "worst_tenant_attainment": {**SLOW, "continuous": Served(pace=0.5, starved="t2")},
        "goodput": {name: Served(pace=1.6 if name == "continuous" else 1.2) for name in SLOW},
    }
    for metric, arms in faults.items():
        comparisons = Comparisons(plan(), evaluation(arms), METRICS, Label.CONFIRMATORY)
        failed = {one.metric for one in metric_outcomes(comparisons) if one.critical and one.phase is Phase.FAILED}
        assert metric in failed
