"""``explain`` and ``replay`` over stored runs: words for people, JSON for programs, errors in one line."""

import json
from pathlib import Path

import pytest

from ekiden.cli.main import main
from tests.unit.evidence.directed import Directed
from tests.unit.evidence.recorded import finished, stored


@pytest.fixture(autouse=True)
def no_simulation_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command refuses variables that are no settings, and the simulation has one of its own."""
    monkeypatch.delenv("SIMULATION_SEEDS", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    world = Directed(max_num_seqs=1)
    world.submit("long", output=40)
    world.step(2)
    world.submit("late", output=3, tenant="ours")
    world.submit("call-0", output=3)
    world.submit("call-1", output=3)
    world.run()
    with world.stored(tmp_path):
        return tmp_path


def run(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> tuple[int, str, str]:
    status = main([*arguments, "--ledger-dir", str(folder)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_one_request_in_words(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    status, text, _ = run(capsys, folder, "explain", "late")
    assert status == 0
    assert "waiting for a free slot" in text
    assert text.index("late") < text.index("cause") < text.index("end to end") < text.index("what happened")
    assert "max_num_seqs=1 (set by configuration)" in text


def test_one_request_for_programs(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    status, text, _ = run(capsys, folder, "explain", "late", "--json")
    told = json.loads(text)
    assert status == 0
    assert told["request_id"] == "late"
    assert told["causes"][0]["cause"] == "waiting_for_slot"
    assert sum(cause["seconds"] for cause in told["causes"]) == pytest.approx(told["e2e_seconds"], abs=1e-6)


def test_a_call_of_several_answers(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    _, text, _ = run(capsys, folder, "explain", "call", "--json")
    assert [told["request_id"] for told in json.loads(text)] == ["call-0", "call-1"]


def test_questions(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    _, text, _ = run(capsys, folder, "explain", "late", "--why", "truncated")
    assert "It reached the 3 tokens that it asked for with max_tokens." in text
    _, text, _ = run(capsys, folder, "explain", "late", "--why", "different", "--than", "long", "--json")
    assert json.loads(text)["facts"]["other"] == "long"


def test_the_worst(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    _, text, _ = run(capsys, folder, "explain", "--worst", "2", "--json")
    assert [one["request_id"] for one in json.loads(text)["requests"]] == ["call-1", "call-0"]
    _, text, _ = run(capsys, folder, "explain", "--worst", "9", "--last", "1h")
    assert "The 4 slowest requests" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain"], "give either REQUEST or --worst N"),
        (["explain", "nobody"], "no request 'nobody' in"),
        (["explain", "late", "--run", "nothing"], "no run 'nothing' in"),
        (["explain", "late", "--why", "different", "--than", "nobody"], "no request 'nobody' in"),
        (["explain", "--worst", "2", "--last", "soon"], "--last is 'soon'"),
        (["replay", "nothing"], "no run 'nothing' in"),
        (["replay", "--with-model", "smollm2-135m"], "kept no prompts"),
        (["replay", "--max-num-batched-tokens", "1"], "max_num_batched_tokens is 1"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], folder: Path, arguments: list[str], message: str) -> None:
    status, _, error = run(capsys, folder, *arguments)
    assert status == 2
    assert message in error
    assert error.count("\n") == 1


def test_a_run_is_replayed(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    status, text, _ = run(capsys, folder, "replay")
    assert status == 0
    assert "turns decided as recorded" in text
    _, text, _ = run(capsys, folder, "replay", "--list")
    assert "directed" in text


def test_a_difference_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(finished(7), tmp_path)
    monkeypatch.setattr("ekiden.stages.formation.chunk_size", lambda **_: 1)
    status, text, _ = run(capsys, tmp_path, "replay")
    assert status == 1
    assert "was decided differently" in text
    assert "prefills" in text
    status, text, _ = run(capsys, tmp_path, "replay", "--json")
    assert json.loads(text)["first_difference"]["fields"]


def test_what_would_have_been(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    status, text, _ = run(capsys, folder, "replay", "--max-num-seqs", "8", "--json")
    told = json.loads(text)
    assert status == 0
    assert told["changed"] == {"max_num_seqs": 8}
    assert told["other"]["e2e_p99"] < told["recorded"]["e2e_p99"]
    _, text, _ = run(capsys, folder, "replay", "--batching", "static")
    assert "had it been batching=static" in text
    assert "Error: simulating the recorded policy misses" in text
