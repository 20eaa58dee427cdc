"""The seven answers and the limits: in both languages, with the outcome's figures, and with what is missing named."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ekiden.evaluation.analysis.adoption_reasons import STAGES
from ekiden.evaluation.analysis.adoption_running import ALERTS
from ekiden.evaluation.analysis.analyse import analyse
from ekiden.evaluation.analysis.answers import answers, limits
from ekiden.evaluation.analysis.recovery import SHOWN
from ekiden.evaluation.analysis.told_figures import Told
from ekiden.evaluation.outcome import ArmFigures, Calibrated, Chart, Curve, Distribution, Label, Outcome, Tuning
from ekiden.state.controls import Controls
from tests.unit.evaluation.analysis.made import Served, plan, runs

ROOT = Path(__file__).parents[4]
LINEAGE = {
    "model": {"name": "a-model", "max_model_len": 2048},
    "machine": {"system": "Linux", "machine": "x86_64", "cpus": 2},
    "backend": {"backend": "fake"},
}
PURPOSE, MECHANISM, BASELINE, EVIDENCE, OPERATION, RISK, RECOVERY = range(7)


@cache
def _analysed() -> bytes:
    arms = {"continuous": Served(), "static": Served(pace=1.5), "window": Served(starved="t2")}
    found = analyse(plan(blocks=3), runs(arms, seed=2, blocks=3), label=Label.EXPLORATORY, lineage=LINEAGE)
    return msgspec.json.encode(found)


def outcome(**changes) -> Outcome:
    return msgspec.structs.replace(msgspec.json.decode(_analysed(), type=Outcome), **changes)


def text(found: Outcome, question: int, language: str = "en") -> str:
    return "\n".join(answers(found)[question].answer[language])


def test_seven_questions_are_answered_alike_in_both_languages():
    found = answers(outcome())
    starts = [answer.question["en"].split(":")[0] for answer in found]
    assert starts == ["Purpose", "Mechanism", "Baseline", "Evidence", "Operation", "Risk", "Recovery"]
    for each in (*(answer.answer for answer in found), limits(outcome())):
        assert set(each) == {"en", "ja"}
        assert len(each["en"]) == len(each["ja"]) > 0
        for english, japanese in zip(each["en"], each["ja"], strict=True):
            assert re.search("[ぁ-ん一-龠]", japanese)
            assert english.isascii()
            assert not re.search(r"[{}]|\bNone\b|\bnan\b", english + japanese)
            # Both tell the same figures; only the words around them differ.
            figures = [re.findall(r"\d+\.\d+", line) for line in (english, japanese)]
            assert sorted(figures[0]) == sorted(figures[1])


def test_the_figures_are_those_of_the_outcome():
    found = outcome()
    goodput = {one.arm: one.scalars["goodput"] for one in found.figures if (one.workload, one.subgroup) == ("chat", "")}
    assert set(goodput) == {"continuous", "static", "window"}
    for arm, value in goodput.items():
        assert f"{arm} {value:.3g}/s" in text(found, PURPOSE)
        assert f"{arm} は {value:.3g} 件/秒" in text(found, PURPOSE, "ja")
    against = next(
        one for one in found.metrics if (one.metric, one.workload, one.baseline) == ("goodput", "chat", "static")
    )
    assert f"{against.comparison.ratio:.3g} (" in text(found, EVIDENCE)
    assert "window 0.0%" in text(found, RISK)


def test_what_the_outcome_lacks_is_said_to_be_missing():
    found = outcome(figures=[], metrics=[], noise=[], charts=[], lineage={}, workloads=[])
    for question in (PURPOSE, OPERATION, RISK):
        assert "not measured" in text(found, question)
        assert "未測定" in text(found, question, "ja")
    assert "An arm against itself: not measured." in text(found, BASELINE)
    assert "Subgroups: not measured." in text(found, EVIDENCE)
    assert "is not shown" in text(found, MECHANISM)
    told = limits(found)["en"]
    assert {"Model: not recorded.", "Hardware: not recorded."} <= set(told)
    assert "No workload of kind normal or hard or misleading was run." in told


def test_a_tail_of_few_values_is_not_estimable_rather_than_not_measured():
    assert "first token p99 not estimable" in text(outcome(), OPERATION)
    assert "Too few requests for a p99 of the first token: chat, equal." in limits(outcome())["en"]


def test_tuning_the_variance_of_lengths_and_calibration_are_told():
    charts = [
        Chart(
            kind="gain_variance", title="", x_label="", y_label="",
            curves=[Curve(name="static", x=[1.0, 0.0], y=[1.42, 1.01])],
        )
    ]  # fmt: skip
    tuning = [Tuning(arm="static", chosen={"batching": "static", "max_num_seqs": 16}, trials=[{}] * 3, how="grid")]
    own: dict[str, Any] = {"arm": "continuous", "n": 50, "median_relative_error": 0.1, "stated": 0.8}
    calibration = [
        Calibrated(predicted="step time", subgroup="", observed=0.75, **own),
        Calibrated(predicted="step time", subgroup="step=mixed", observed=0.11, **own),
    ]
    found = outcome(charts=charts, tuning=tuning, calibration=calibration)
    assert "static: 1.01 at a coefficient of variation of 0.00, 1.42 at 1.00." in text(found, MECHANISM)
    assert "static was tuned on dev in 3 trials and runs with batching=static, max_num_seqs=16." in text(
        found, BASELINE
    )
    assert "window (batching=window) was not tuned" in text(found, BASELINE)
    assert "step time 75.0% (stated 80%, 50 cases)" in text(found, RISK)
    assert "11.0%" not in text(found, RISK)


def test_the_worst_served_subgroup_is_found_over_all_workloads():
    nothing = Distribution(n=0, mean=None, p50=None, p90=None, p95=None, p99=None, p999=None, max=None)

    def of(arm, workload, subgroup, attainment):
        return ArmFigures(
            arm=arm, workload=workload, subgroup=subgroup, offered=30, good=0, failures={}, seconds=1.0,
            scalars={"slo_attainment": attainment}, distributions={"ttft": nothing},
        )  # fmt: skip

    figures = [
        of("continuous", "chat", "tenant=a", 0.9),
        of("continuous", "equal", "language=ja", 0.25),
        of("static", "equal", "language=ja", 0.5),
        of("static", "chat", "tenant=a", 0.0),
    ]
    told = text(outcome(figures=figures), EVIDENCE)
    assert "Worst served subgroup: language=ja on equal, 25.0% of 30 requests in time; there, static 50.0%." in told
    assert "Languages: only ja;" in "\n".join(limits(outcome(figures=figures))["en"])


def test_limits_name_model_machine_data_and_standing():
    told = "\n".join(limits(outcome(integrity=["the plan"], void=["one", "two"]))["en"])
    for part in ("a-model (context 2,048 tokens)", "Linux x86_64, 2 processors, fake", "azure-conversation"):
        assert part in told
    for part in ("Exploratory", "1 things changed: the plan", "2 runs are void", "No workload of kind hard was run"):
        assert part in told
    assert "Exploratory" not in "\n".join(limits(outcome(label=Label.CONFIRMATORY))["en"])


def test_a_figure_that_no_metric_gives_cannot_be_asked_for():
    with pytest.raises(AssertionError, match="is no metric"):
        Told(outcome()).each("chat", "speed", lambda value: {"en": "", "ja": ""})


# -- what the answers point to exists ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for shown in SHOWN for name in shown.tests])
def test_the_tests_that_show_a_recovery_exist(name):
    path, test = name.split("::")
    assert re.search(rf"^(async )?def {test}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_alerts_and_settings_exist():
    rules = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    assert all(f"alert: {name}" in rules for name in ALERTS)
    assert set(STAGES) <= set(Controls.__struct_fields__)
