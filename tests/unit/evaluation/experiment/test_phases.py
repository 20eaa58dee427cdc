"""The whole conduct of a plan in virtual time: the verdict follows the truth that was planted."""

import pytest

from ekiden.errors import UserError
from ekiden.evaluation.outcome import Label, Verdict
from tests.unit.evaluation.experiment.virtual import Trial, change_document, plan_document
from tests.unit.evaluation.load.test_simulated_subject import WrongFrom

SAME = {"role": "candidate", "settings": {"batching": "continuous"}}
STATIC = {"role": "baseline", "settings": {"batching": "static"}, "tune": {"max_num_seqs": [2, 8]}}


def confirmed(tmp_path, made, **subjects):
    trial = Trial(tmp_path, made, **subjects)
    trial.register()
    return trial, trial.evaluation().confirm()


def test_a_real_gain_is_adopted_and_the_report_can_be_made_again(tmp_path):
    trial, outcome = confirmed(tmp_path, plan_document({"continuous": SAME, "static": STATIC}))
    assert outcome.verdict is Verdict.ADOPT, outcome.summary
    assert outcome.label is Label.CONFIRMATORY
    assert not outcome.integrity
    assert outcome.tuning[0].chosen["max_num_seqs"] in (2, 8)
    again = trial.evaluation().report()
    assert (again.verdict, again.label, again.metrics) == (outcome.verdict, outcome.label, outcome.metrics)
    assert len(outcome.slots) == 2


def test_a_slower_step_is_not_adopted(tmp_path):
    _, outcome = confirmed(tmp_path, change_document(SAME), new={"slowdown": 1.2})
    assert outcome.verdict is Verdict.DO_NOT_ADOPT, outcome.summary


def test_wrong_tokens_in_one_arm_are_not_adopted(tmp_path):
    made = plan_document({"continuous": SAME, "static": STATIC})
    _, outcome = confirmed(tmp_path, made, continuous={"wrap": lambda runner: WrongFrom(runner, 100)})
    assert outcome.verdict is Verdict.DO_NOT_ADOPT, outcome.summary
    failed = [metric.metric for metric in outcome.metrics if metric.critical and metric.phase.value == "Failed"]
    assert failed == ["tokens_equal"]


def test_a_starving_order_is_not_adopted(tmp_path):
    """Beside a tenant that sends twenty times as much, the other one waits behind it: good for nobody but the flood."""
    made = change_document(SAME, source="flood", rate=24.0, seconds=8, length_scale=0.3, options={})
    made["arms"]["old"]["settings"]["scheduling_policy"] = "fair"
    made["metrics"].append({"name": "service_gap", "direction": "down", "margin": 0.5, "critical": True})
    _, outcome = confirmed(tmp_path, made)
    assert outcome.verdict is Verdict.DO_NOT_ADOPT, outcome.summary
    assert "service_gap" in {each.metric for each in outcome.metrics if each.phase.value == "Failed"}


def test_a_against_a_is_inconclusive(tmp_path):
    verdicts = []
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        _, outcome = confirmed(folder, change_document(SAME), seed=seed)
        verdicts.append(outcome.verdict)
    assert verdicts == [Verdict.INCONCLUSIVE] * 3


def test_an_interrupted_confirmation_goes_on_and_is_run_once(tmp_path):
    trial = Trial(tmp_path, plan_document({"continuous": SAME, "static": STATIC}))
    trial.register()
    whole = Trial(tmp_path, plan_document({"continuous": SAME, "static": STATIC}))
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


def test_a_plan_that_was_edited_is_refused_and_an_edited_result_is_shown(tmp_path):
    trial = Trial(tmp_path, plan_document({"continuous": SAME, "static": STATIC}))
    trial.register()
    text = trial.path.read_text(encoding="utf-8")
    trial.path.write_text(text.replace("result >= 1.1", "result >= 1.01"), encoding="utf-8")
    with pytest.raises(UserError, match="1\\.01"):
        trial.evaluation().confirm()
    trial.path.write_text(text, encoding="utf-8")
    trial.evaluation().confirm()
    file = next((trial.folder / "runs" / "confirm").iterdir())
    file.write_bytes(file.read_bytes().replace(b'"failure":null', b'"failure":"odd"', 1))
    again = trial.evaluation().report()
    assert any(file.name in finding for finding in again.integrity)
    assert again.label is Label.EXPLORATORY


def test_tuned_settings_that_are_edited_afterwards_are_shown(tmp_path):
    trial, outcome = confirmed(tmp_path, plan_document({"continuous": SAME, "static": STATIC}))
    assert not outcome.integrity
    file = trial.folder / "prepared.json"
    text, chosen = file.read_text(encoding="utf-8"), outcome.tuning[0].chosen["max_num_seqs"]
    file.write_text(text.replace(f'"max_num_seqs":{chosen}}}', '"max_num_seqs":1}', 1), encoding="utf-8")
    again = trial.evaluation().report()
    assert any("static" in finding for finding in again.integrity)
    assert again.label is Label.EXPLORATORY


def test_an_exploratory_run_tells_the_noise_and_how_many_blocks_are_needed(tmp_path):
    made = plan_document({"continuous": SAME, "static": STATIC})
    made["dev_blocks"] = 4
    trial = Trial(tmp_path, made)
    outcome = trial.evaluation().explore()
    assert outcome.label is Label.EXPLORATORY
    assert outcome.noise
    assert outcome.noise[0].blocks == 4
    trial.register()
    assert trial.evaluation().confirm().noise[0].blocks == 4, "the noise of dev stands in the confirmation too"
    assert outcome.blocks_needed
