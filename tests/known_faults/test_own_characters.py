"""Terminals that cannot show every character, output that cannot be written, arguments that are no text."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ekiden.cli import streams
from ekiden.cli.main import main
from ekiden.cli.terminal import print_json
from tests.unit.evidence.directed import Directed

NAME = "modèle-模型-🙂"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of which requests are waiting, running and ended, with names of many characters."""
    world = Directed(max_num_seqs=2)
    for number in range(5):
        world.submit(f"{NAME}-{number}", output=6, tenant="tenant")
    world.step(9)
    with world.stored(tmp_path):
        return tmp_path


def shown(monkeypatch: pytest.MonkeyPatch, encoding: str, *arguments: str) -> str:
    """What a command writes on a terminal of this encoding."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))
    assert main(list(arguments)) == 0
    return written.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["iso-8859-1", "ascii", "cp1252", "iso-8859-7"])
def test_own_16_every_page_is_shown_in_plain_characters(
    folder: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    at = ("--ledger-dir", str(folder))
    for command in (
        ["explain", f"{NAME}-0"],
        ["explain", "--worst", "1"],
        ["explain", f"{NAME}-0", "--why", "slow"],
        ["lineage"],
        ["replay", "--list"],
    ):
        text = shown(monkeypatch, encoding, *command, *at)
        whole = shown(monkeypatch, "utf-8", *command, *at)
        assert [len(line.rstrip()) for line in text.splitlines()] == [
            sum(2 if character in "模型🙂" else 1 for character in line.rstrip()) for line in whole.splitlines()
        ], "a column has moved"
    assert "decided as recorded" in shown(monkeypatch, encoding, "replay", *at)
    page = shown(monkeypatch, encoding, "top", "--once", *at)
    assert "slots" in page
    assert "█" not in page
    assert f"{NAME}-0" == json.loads(shown(monkeypatch, encoding, "explain", f"{NAME}-0", "--json", *at))["request_id"]


def test_own_16_stand_ins_are_as_wide_as_what_they_stand_for() -> None:
    streams.prepare()
    for character, plain in (("…", "."), ("█", "#"), ("░", "."), ("é", "e"), ("型", "??"), ("🙂", "??"), ("‰", "?")):
        assert character.encode("ascii", streams.PLAIN).decode() == plain
    assert "a\udcffb".encode("utf-8", streams.PLAIN) == b"a?b"


def test_own_16_json_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii", streams.PLAIN))
    print_json({"name": NAME + "\udcff"})
    sys.stdout.flush()
    assert json.loads(written.getvalue()) == {"name": NAME + "\udcff"}


@pytest.mark.parametrize(
    "command",
    [
        ["serve", "--served-model-name", "a\udcff"],
        ["serve", "a\udcff.gguf"],
        ["explain", "\udcff"],
        ["run", "\udcff.jsonl"],
        ["chat", "--system", "\udcff"],
        ["\udcff"],
    ],
)
def test_own_16_an_argument_of_other_bytes_is_one_clear_line(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "ekiden: error: the argument 'a\\udcff" if "a\udcff" in command[-1] else "ekiden: error: the"
    )
    assert "holds bytes that are no utf-8" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["EKIDEN_SERVED_MODEL_NAME", "EKIDEN_MODEL", "EKIDEN_LEDGER_DIR"])
def test_own_16_a_variable_of_other_bytes_is_one_clear_line(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "a\udcff")
    assert main(["serve"]) == 2
    error = capsys.readouterr().err
    assert f"from {name} holds bytes that are no text; write it in UTF-8" in error
    assert error.count("\n") == 1


def command_line(*arguments: str, stdout: int, **variables: str) -> "subprocess.CompletedProcess[bytes]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("EKIDEN_", "LC_", "LANG"))}
    return subprocess.run(
        [sys.executable, "-m", "ekiden", *arguments], stdout=stdout, stderr=subprocess.PIPE, check=False, timeout=60,
        env=environment | variables, cwd=Path(__file__).parents[2],
    )  # fmt: skip


def test_own_16_the_terminals_encoding_is_the_locales(folder: Path) -> None:
    """The whole command in a locale without UTF-8, which Python is told not to correct."""
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    ended = command_line("top", "--once", "--ledger-dir", str(folder), stdout=subprocess.PIPE, **plain)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.isascii()


def test_own_15_a_result_that_cannot_be_written_is_one_line_and_status_1() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        ended = command_line("config", "show", "--json", stdout=full)
    finally:
        os.close(full)
    assert ended.returncode == 1
    assert ended.stderr == b"ekiden: error: the output cannot be written: No space left on device\n"


def test_own_15_a_reader_that_left_is_told_nothing() -> None:
    reader, pipe = os.pipe()
    os.close(reader)
    try:
        ended = command_line("config", "show", "--json", stdout=pipe)
    finally:
        os.close(pipe)
    assert (ended.returncode, ended.stderr) == (1, b"")
