"""The whole conduct of a plan in virtual time: the verdict follows the truth that was planted."""

import os
import shutil

import pytest

from ekiden.errors import UserError
from ekiden.evaluation.outcome import Label, Verdict
from tests.unit.evaluation.experiment.virtual import SHORT, Trial, change_document, plan_document
from tests.unit.evaluation.load.test_simulated_subject import WrongFrom

SAME = {"role": "candidate", "settings": {"batching": "continuous"}}
STATIC = {"role": "baseline", "settings": {"batching": "static"}, "tune": {"max_num_seqs": [2, 8]}}
# Evaluations of an arm against itself; `make soak` has many more.
EVALUATIONS = int(os.environ.get("SOAK_EVALUATIONS", "50")) // 25


def confirmed(tmp_path, made, **subjects):
    trial = Trial(tmp_path, made, **subjects)
    trial.register()
    return trial, trial.evaluation().confirm()


def gain(**workload):
    """Continuous batching against static batching, which is tuned."""
    return plan_document({"continuous": SAME, "static": STATIC}, workload=workload)


@pytest.fixture(scope="module")
def gained(tmp_path_factory):
    """A real gain that is confirmed. Only read it: :func:`copied` is for what changes it."""
    return confirmed(tmp_path_factory.mktemp("gained"), gain())


@pytest.fixture
def copied(gained, tmp_path):
    """The same once more, in a folder of its own."""
    trial, outcome = gained
    shutil.copytree(trial.path.parent, tmp_path, dirs_exist_ok=True)
    return Trial(tmp_path, gain()), outcome


def test_a_real_gain_is_adopted_and_the_report_can_be_made_again(gained):
    trial, outcome = gained
    assert outcome.verdict is Verdict.ADOPT, outcome.summary
    assert outcome.label is Label.CONFIRMATORY
    assert not outcome.integrity
    assert outcome.tuning[0].chosen["max_num_seqs"] in (2, 8)
    again = trial.evaluation().report()
    assert (again.verdict, again.label, again.metrics) == (outcome.verdict, outcome.label, outcome.metrics)
    assert len(outcome.slots) == 2


def test_a_slower_step_is_not_adopted(tmp_path):
    _, outcome = confirmed(tmp_path, change_document(SAME, seconds=5), new={"slowdown": 1.2})
    assert outcome.verdict is Verdict.DO_NOT_ADOPT, outcome.summary


def test_wrong_tokens_in_one_arm_are_not_adopted(tmp_path):
    made = gain(**SHORT)
    _, outcome = confirmed(tmp_path, made, continuous={"wrap": lambda runner: WrongFrom(runner, 100)})
    assert outcome.verdict is Verdict.DO_NOT_ADOPT, outcome.summary
    failed = [metric.metric for metric in outcome.metrics if metric.critical and metric.phase.value == "Failed"]
    assert failed == ["tokens_equal"]


def test_a_starving_order_is_not_adopted(tmp_path):
    """Beside a tenant that sends twenty times as much, the other one waits behind it: good for nobody but the flood."""
    made = change_document(SAME, source="flood", rate=24.0, seconds=5, length_scale=0.3, options={})
    made["arms"]["old"]["settings"]["scheduling_policy"] = "fair"
    made["metrics"].append({"name": "service_gap", "direction": "down", "margin": 0.5, "critical": True})
    _, outcome = confirmed(tmp_path, made)
    assert outcome.verdict is Verdict.DO_NOT_ADOPT, outcome.summary
    assert "service_gap" in {each.metric for each in outcome.metrics if each.phase.value == "Failed"}


def test_a_against_a_is_inconclusive(tmp_path):
    verdicts = []
    for seed in range(EVALUATIONS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        _, outcome = confirmed(folder, change_document(SAME), seed=seed)
        verdicts.append(outcome.verdict)
    assert verdicts.count(Verdict.INCONCLUSIVE) >= 0.95 * EVALUATIONS, verdicts


def test_an_interrupted_confirmation_goes_on_and_is_run_once(tmp_path):
    trial = Trial(tmp_path, gain(**SHORT))
    trial.register()
    whole = Trial(tmp_path, gain(**SHORT))
    trial.subjects.stop_after = 12
    with pytest.raises(KeyboardInterrupt):
        trial.evaluation().confirm()
    kept = len(trial.evaluation().store.finished("confirm"))
    assert 0 < kept < 20
    trial.subjects.stop_after = None
    before = len(trial.subjects.served)
    outcome = trial.evaluation().confirm()
    assert len(trial.subjects.served) - before == 20 - kept
    assert outcome.label is Label.CONFIRMATORY
    with pytest.raises(UserError, match="once"):
        whole.evaluation().confirm()


def test_a_plan_that_was_edited_is_refused_until_it_is_as_it_was(tmp_path):
    trial = Trial(tmp_path, gain(**SHORT))
    trial.register()
    text = trial.path.read_text(encoding="utf-8")
    trial.path.write_text(text.replace("result >= 1.1", "result >= 1.01"), encoding="utf-8")
    with pytest.raises(UserError, match="1\\.01"):
        trial.evaluation().confirm()
    assert not trial.evaluation().store.finished("confirm")
    trial.path.write_text(text, encoding="utf-8")
    assert not trial.evaluation().confirm().integrity


def test_a_result_that_was_edited_is_shown(copied):
    trial, outcome = copied
    assert not outcome.integrity
    file = next((trial.folder / "runs" / "confirm").iterdir())
    file.write_bytes(file.read_bytes().replace(b'"failure":null', b'"failure":"odd"', 1))
    again = trial.evaluation().report()
    assert any(file.name in finding for finding in again.integrity)
    assert again.label is Label.EXPLORATORY


def test_tuned_settings_that_are_edited_afterwards_are_shown(copied):
    trial, outcome = copied
    assert not outcome.integrity
    file = trial.folder / "prepared.json"
    text, chosen = file.read_text(encoding="utf-8"), outcome.tuning[0].chosen["max_num_seqs"]
    file.write_text(text.replace(f'"max_num_seqs":{chosen}}}', '"max_num_seqs":1}', 1), encoding="utf-8")
    again = trial.evaluation().report()
    assert any("static" in finding for finding in again.integrity)
    assert again.label is Label.EXPLORATORY


def test_an_exploratory_run_tells_the_noise_and_how_many_blocks_are_needed(tmp_path):
    made = gain(**SHORT)
    made["dev_blocks"] = 4
    trial = Trial(tmp_path, made)
    outcome = trial.evaluation().explore()
    assert outcome.label is Label.EXPLORATORY
    assert outcome.noise
    assert outcome.noise[0].blocks == 4
    trial.register()
    assert trial.evaluation().confirm().noise[0].blocks == 4, "the noise of dev stands in the confirmation too"
    assert outcome.blocks_needed
