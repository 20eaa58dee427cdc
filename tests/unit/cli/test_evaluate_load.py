"""``ekiden evaluate load`` and ``sweep`` on the model without weights."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from ekiden.cli import evaluate_load
from ekiden.errors import UserError


@pytest.fixture
def engine(reference_dir: Path, tmp_path: Path) -> list[str]:
    """A tiny model's folder, of which only the tokenizer and the sizes are used."""
    return [
        "--model", str(reference_dir / "llama"), "--backend", "fake", "--model-cache", str(tmp_path / "cache"),
        "--ledger-dir", str(tmp_path / "ledger"),
    ]  # fmt: skip


def run(command: click.Command, *arguments: str, status: int = 0) -> Any:
    result = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


SHORT = ("--source", "poisson", "--rate", "40", "--seconds", "0.5", "--length-scale", "0.05")


def test_a_load_in_process_shows_its_figures_with_their_formulas(engine):
    shown = run(evaluate_load.load, *engine, *SHORT, "--in-process", "--ttft", "60").stdout
    assert "slo_attainment = good / all offered requests" in shown
    assert "100.00%" in shown
    assert "Recorded as run" in shown


def test_a_load_on_a_server_of_our_own_counts_the_same(engine):
    figures = {}
    for where in ((), ("--in-process",)):
        output = run(evaluate_load.load, *engine, *SHORT, "--ttft", "60", "--json", *where).stdout
        figures[where] = json.loads(output)
    over_http, in_process = figures.values()
    for name in ("requests", "failures", "good", "prompt_tokens", "output_tokens"):
        assert over_http[name] == in_process[name], name
    assert over_http["lineage"]["workload_digest"] == in_process["lineage"]["workload_digest"]
    assert over_http["steps"] is None
    assert in_process["steps"] > 0


def test_a_late_generator_makes_the_status_1(engine):
    result = run(evaluate_load.load, *engine, *SHORT, "--in-process", "--ttft", "0.0000001", status=1)
    assert "This run is void" in result.stderr


def test_a_sweep_that_finds_no_rate_fails_and_remembers_what_it_measured(engine, tmp_path: Path):
    state = tmp_path / "state.jsonl"
    objectives = ("--ttft", "60", "--tpot", "0.0000001")
    hopeless = ("--in-process", *objectives, "--runs", "1", "--least-requests", "1", "--state", str(state))
    load = ("--source", "equal-lengths", "--rate", "40", "--seconds", "0.2", "--length-scale", "0.1")
    first = json.loads(run(evaluate_load.sweep, *engine, *load, *hopeless, "--json", status=1).stdout)
    assert first["highest"] is None
    # Down to the rate that makes one request.
    assert [point["rate"] for point in first["points"]] == [5.0, 10.0, 20.0, 40.0]
    assert len(state.read_text().splitlines()) == 1 + 4
    again = run(evaluate_load.sweep, *engine, *load, *hopeless, status=1)
    assert "good" not in again.stderr, "nothing was measured again"
    assert "none was found" in again.stdout
    with pytest.raises(UserError, match="another sweep"):
        run(evaluate_load.sweep, *engine, *load, *hopeless, "--batching", "static")


def test_a_url_and_in_process_exclude_each_other(engine):
    with pytest.raises(UserError, match="exclude each other"):
        run(evaluate_load.load, *SHORT, "--in-process", "--url", "http://127.0.0.1:9")


def test_settings_cannot_reach_a_server_that_runs():
    with pytest.raises(UserError, match="--batching"):
        run(evaluate_load.load, *SHORT, "--url", "http://127.0.0.1:9", "--batching", "static")
