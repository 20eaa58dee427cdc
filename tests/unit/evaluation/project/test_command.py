"""`ekiden evaluate project`: the figures, the error beside them, and what is refused."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ekiden.cli.evaluate_project import command
from ekiden.config import ConfigError
from ekiden.errors import UserError
from ekiden.evaluation.project.profile import read_profile, toml_of
from tests.unit.evaluation.project.fleets import PROFILE
from tests.unit.evaluation.project.test_profile import recorded


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "profile.toml"
    path.write_text(toml_of(PROFILE))
    return str(path)


@pytest.fixture
def run(tmp_path: Path) -> str:
    recorded().stored(tmp_path).close()
    return str(tmp_path / "directed.sqlite")


def asked(*arguments: object) -> Any:
    return command.main(args=[str(each) for each in arguments], prog_name="project", standalone_mode=False)


def test_a_fleet_of_a_recorded_run(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--run", run, "--rate", 30, "--seconds", 10, "--repeats", 2, "--replicas", 2, "--json")
    assert asked(*arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["projected"]["replicas"] == len(told["projected"]["busy"]) == 2
    assert told["projected"]["requests"] == pytest.approx(600, abs=150)
    assert told["workload"]["source"] == "run directed"
    assert told["profile"]["accuracy"]["checked_on"] == "directed"
    assert told["formulas"].keys() >= {"attainment", "goodput"}
    assert asked(*arguments) == 0
    assert json.loads(capsys.readouterr().out) == told


def test_the_table_has_the_error_beside_the_figures(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked("--run", run, "--rate", 5, "--seconds", 10, "--replicas", 1, "--batching", "static") == 0
    told = capsys.readouterr().out
    assert "attainment" in told
    assert "Error: simulating run directed (the run that it was fitted to) misses" in told
    assert "goodput = good requests / seconds of arrivals" in told
    assert "n. e." in told


def test_the_replicas_that_are_needed_and_too_few(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--profile", profile, "--source", "poisson", "--seconds", 5, "--rate", 12, "--repeats", 1)
    easy = ("--ttft", 60, "--tpot", 5, "--attainment", 0.5)
    assert asked(*common, *easy, "--json") == 0
    assert json.loads(capsys.readouterr().out)["needed"]["replicas"] == 1
    assert asked(*common, "--ttft", 0.0001, "--most", 2) == 1
    assert "Replicas needed for 99.0%: more than were allowed" in capsys.readouterr().out


def test_an_unmeasured_profile_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dream.toml"
    path.write_text(toml_of(msgspec.structs.replace(PROFILE, measured=False)))
    asked("--profile", path, "--source", "poisson", "--seconds", 3, "--rate", 2, "--repeats", 1, "--replicas", 1)
    assert "HYPOTHETICAL" in capsys.readouterr().out


def test_a_profile_is_saved_and_checked_on_another_run(
    run: str, profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved.toml"
    assert asked("--run", run, "--save-profile", saved) == 0
    assert read_profile(saved).made["run"] == "directed"
    assert "Wrote" in capsys.readouterr().out
    assert asked("--profile", profile, "--check", run, "--save-profile", saved) == 0
    assert read_profile(saved).accuracy.checked_on == "directed"
    assert read_profile(saved).accuracy.figures_error != PROFILE.accuracy.figures_error


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--rate", 1), "give either --profile"),
        (("--rate", 1, "--profile", "x", "--run", "last"), "give either --profile"),
        (("--rate", 1, "--profile", "/nowhere.toml"), "profile is '/nowhere.toml'"),
        (("--profile", "PROFILE"), "--rate is missing"),
        (("--rate", 1, "--profile", "PROFILE", "--source", "none"), "source is 'none'"),
    ],
)
def test_what_is_refused(profile: str, arguments: tuple[object, ...], told: str) -> None:
    with pytest.raises(UserError, match=told):
        asked(*(profile if each == "PROFILE" else each for each in arguments))


def test_settings_that_cannot_work_are_refused(profile: str) -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens is 10"):
        asked("--profile", profile, "--rate", 1, "--source", "poisson", "--max-num-batched-tokens", 10)
