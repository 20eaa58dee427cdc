"""``init`` writes a plan that can be registered as it is, and ``register`` fixes it."""

import json

import pytest
from click.testing import CliRunner

from ekiden.cli import evaluate_plan, loading
from ekiden.cli.evaluate_plan import folder_of, init, register
from ekiden.errors import UserError
from ekiden.evaluation.plan.read import PlanError, read_plan
from ekiden.evaluation.plan.registration import registered
from tests.unit.evaluation.benches.test_bench import make_parts
from tests.unit.evaluation.plan.plans import KNOWN


def run(command, *arguments, answers=""):
    """What the command printed, both streams. Its errors are raised."""
    result = CliRunner().invoke(command, [str(each) for each in arguments], input=answers, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output


def in_force(path):
    made = registered(folder_of(path))
    assert made is not None
    return made


@pytest.mark.parametrize("profile", ["quick", "full"])
def test_init_without_a_terminal_asks_nothing_and_says_what_it_took(tmp_path, profile):
    path = tmp_path / "new" / "plan.toml"
    said = run(init, path, "--no-fit", "--profile", profile, "--owner", "Aoi", "--ttft", 0.5, "--model", "x.gguf")
    plan = read_plan(path, KNOWN)
    assert (plan.decision.owner, plan.objectives.ttft, plan.engine.model) == ("Aoi", 0.5, "x.gguf")
    assert (
        "not stated, so as the profile has it: --question, --affected, --wrong-result, --known, --alternative" in said
    )
    assert "--owner" not in said
    assert "--ttft" not in said


def test_init_on_a_terminal_asks_what_no_flag_says(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate_plan, "_may_ask", lambda: True)
    path = tmp_path / "plan.toml"
    answers = 'Is it "faster"?\nmoney\n\n\n走者\n1.5\n\n0.95\n'
    said = run(init, path, "--no-fit", "--affected", "all of us", "--price", 0.1, "--currency", "JPY", answers=answers)
    plan = read_plan(path, KNOWN)
    assert plan.decision.question == 'Is it "faster"?'
    assert (plan.decision.affected, plan.decision.wrong_result, plan.decision.owner) == ("all of us", "money", "走者")
    assert (plan.objectives.ttft, plan.objectives.tpot, plan.objectives.attainment) == (1.5, 0.1, 0.95)
    assert (plan.objectives.price_per_machine_hour, plan.objectives.currency) == (0.1, "JPY")
    assert said.count("?") >= 8
    assert "not stated" not in said


def test_init_replaces_nothing_unless_told(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text("mine")
    with pytest.raises(UserError, match="exists; give another name, or --force"):
        run(init, path, "--no-fit")
    assert path.read_text() == "mine"
    run(init, path, "--no-fit", "--force", "--owner", "Aoi")
    assert read_plan(path, KNOWN).decision.owner == "Aoi"


def test_init_writes_no_plan_with_faults(tmp_path):
    path = tmp_path / "plan.toml"
    with pytest.raises(PlanError) as caught:
        run(init, path, "--no-fit", "--owner", " ", "--ttft", -1, "--price", 2)
    assert [fault.split(" ")[0] for fault in caught.value.faults] == [
        "decision.owner", "objectives.ttft", "objectives.currency",
    ]  # fmt: skip
    assert not path.exists()


def test_register_prints_what_is_fixed_and_its_digest(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "load_model", lambda config: make_parts())
    path = tmp_path / "plan.toml"
    run(init, path, "--no-fit", "--profile", "quick", "--owner", "Aoi")
    said = run(register, path)
    made = in_force(path)
    assert made.digest in said
    assert "result >= 1.1" in said
    assert "falsified if goodput on equal-lengths: result > 1.1" in said
    with pytest.raises(UserError, match="nothing has changed"):
        run(register, path)
    path.write_text(path.read_text().replace("seed = 20261", "seed = 4"))
    told = json.loads(run(register, path, "--json"))
    assert told["digest"] == in_force(path).digest != made.digest


def test_the_folder_lies_beside_the_plan(tmp_path):
    assert folder_of(tmp_path / "plan.toml") == tmp_path / "plan"
    assert folder_of(tmp_path / "plan") == tmp_path / "plan.evaluation"
