"""The commands around an evaluation: their exit status is the verdict, and what they print can be read."""

import json

import pytest
import tomlkit

from ekiden.cli import evaluate_run
from ekiden.cli.main import main
from ekiden.evaluation.plan import registration
from ekiden.evaluation.plan.basis import basis_of
from tests.unit.evaluation.experiment.virtual import (
    KNOWN,
    LINEAGE,
    SHORT,
    VirtualSubjects,
    change_document,
    plan_document,
)

CONTINUOUS = {"role": "candidate", "settings": {"batching": "continuous"}}
STATIC = {"role": "baseline", "settings": {"batching": "static"}}


@pytest.fixture
def registered(tmp_path, monkeypatch):
    """Writes and registers a plan whose arms are served in virtual time; returns its path."""

    def make(document, **faults):
        path = tmp_path / "plan.toml"
        path.write_text(tomlkit.dumps(document), encoding="utf-8")
        monkeypatch.setattr(
            "ekiden.evaluation.experiment.subjects.EngineSubjects",
            lambda plan, ledger, describe: VirtualSubjects(plan, **faults),
        )
        plan = evaluate_run.read_plan_at(path)
        registration.register(path, tmp_path / "plan", KNOWN, basis_of(plan, LINEAGE))
        return path

    return make


def test_the_exit_status_is_the_verdict(registered, capsys):
    path = registered(plan_document({"continuous": CONTINUOUS, "static": STATIC}, workload={"seconds": 5}))
    assert main(["evaluate", "confirm", str(path)]) == 0
    told = capsys.readouterr().out
    assert "ADOPT (confirmatory)" in told
    assert str(path.with_suffix("") / "report.html") in told.replace("\n", "")


def test_a_no_ends_with_3_and_json_has_the_whole_outcome(registered, capsys):
    path = registered(change_document(CONTINUOUS, seconds=4), new={"slowdown": 1.3})
    assert main(["evaluate", "confirm", str(path), "--json"]) == 3
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["verdict"] == "do not adopt"
    assert outcome == json.loads((path.with_suffix("") / "report.json").read_text(encoding="utf-8"))
    assert main(["evaluate", "report", str(path), "--lang", "ja"]) == 3
    assert (path.with_suffix("") / "report.ja.html").exists()


def test_equal_arms_end_with_4(registered):
    assert main(["evaluate", "confirm", str(registered(change_document(CONTINUOUS, **SHORT)))]) == 4


def test_an_exploratory_run_keeps_apart_and_a_report_without_runs_says_so(registered, capsys):
    path = registered(plan_document({"continuous": CONTINUOUS, "static": STATIC}, workload=SHORT))
    assert main(["evaluate", "report", str(path)]) == 2
    assert "nothing has been served" in capsys.readouterr().err
    main(["evaluate", "run", str(path)])
    folder = path.with_suffix("")
    assert (folder / "exploratory" / "report.html").exists()
    assert not (folder / "report.html").exists()


def test_a_plan_that_is_not_registered_is_refused(registered, capsys):
    path = registered(plan_document({"continuous": CONTINUOUS, "static": STATIC}))
    other = path.with_name("other.toml")
    other.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    assert main(["evaluate", "confirm", str(other)]) == 2
    assert "ekiden evaluate register" in capsys.readouterr().err
