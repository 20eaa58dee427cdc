"""Recorded runs that are damaged: each is named once, and the others are read."""

import logging
import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ekiden.build import recording
from ekiden.build.recording import recorded_core
from ekiden.cli.main import main
from ekiden.config import LedgerConfig
from ekiden.errors import UserError
from ekiden.evidence import runs
from ekiden.evidence.reader import LedgerReader, LedgerReadError
from ekiden.ledger.retention import runs_in
from ekiden.ledger.store import LedgerWriter
from tests.unit.engine.fake_parts import make_config, make_fake_parts
from tests.unit.evidence.directed import Directed

WHOLE, BROKEN = "20250101-000000-aaaa", "20250102-000000-bbbb"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole run of some pages, and room for a newer one."""
    monkeypatch.setattr(runs, "_named", set())
    world = Directed()
    for number in range(60):
        world.submit(f"request-{number}", output=3)
    world.run()
    world.stored(tmp_path).close()
    (tmp_path / "directed.sqlite").rename(tmp_path / f"{WHOLE}.sqlite")
    return tmp_path


def cut(whole: Path, broken: Path) -> None:
    broken.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])


def without_header(whole: Path, broken: Path) -> None:
    shutil.copy(whole, broken)
    with sqlite3.connect(broken) as connection:
        connection.execute("DELETE FROM run")
    connection.close()


def without_a_table(whole: Path, broken: Path) -> None:
    shutil.copy(whole, broken)
    with sqlite3.connect(broken) as connection:
        connection.execute("DROP TABLE events")
    connection.close()


def overwritten(whole: Path, broken: Path) -> None:
    """Only a page in the middle is lost, which opening does not notice."""
    data = bytearray(whole.read_bytes())
    for page in range(2 * 4096, len(data), 4096):
        data[page : page + 2048] = b"\xff" * 2048
    broken.write_bytes(data)


BREAK: dict[str, Callable[[Path, Path], object]] = {
    "empty": lambda whole, broken: broken.touch(),
    "cut": cut,
    "cut in its first page": lambda whole, broken: broken.write_bytes(whole.read_bytes()[:1000]),
    "no header": without_header,
    "no table": without_a_table,
    "another kind of file": lambda whole, broken: broken.write_text("not a database" * 1000),
    "a folder": lambda whole, broken: broken.mkdir(),
}


@pytest.mark.parametrize("kind", BREAK)
def test_own_14_a_broken_newest_ledger_is_named_once_and_the_others_are_read(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    broken = folder / f"{BROKEN}.sqlite"
    BREAK[kind](folder / f"{WHOLE}.sqlite", broken)
    for command in (
        ["explain", "request-7"],
        ["explain", "--worst", "1"],
        ["top", "--once"],
        ["lineage"],
        ["replay"],
        ["replay", "--list"],
        ["export", "--parquet", str(folder / "tables")],
    ):
        assert main([*command, "--ledger-dir", str(folder)]) == 0, command
        assert capsys.readouterr().out
    (told,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert str(broken) in told.getMessage()


def test_own_14_what_shows_only_in_reading_is_one_line_and_another_run_has_the_request(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    broken = folder / f"{BROKEN}.sqlite"
    overwritten(folder / f"{WHOLE}.sqlite", broken)
    with pytest.raises(LedgerReadError, match="is damaged"), LedgerReader(broken) as reader:
        reader.all_requests()
    assert main(["explain", "--worst", "1", "--ledger-dir", str(folder)]) == 2
    error = capsys.readouterr().err
    assert str(broken) in error
    assert "is damaged" in error
    assert error.count("\n") == 1
    assert main(["explain", "request-7", "--ledger-dir", str(folder)]) == 0
    assert [str(broken) in record.getMessage() for record in caplog.records] == [True]


def test_own_14_a_run_that_is_asked_for_by_name_is_not_replaced_by_another(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / f"{BROKEN}.sqlite").touch()
    assert main(["replay", BROKEN, "--ledger-dir", str(folder)]) == 2
    assert "is not a ledger" in capsys.readouterr().err


def test_own_14_a_run_that_is_being_written_or_was_killed_is_whole(folder: Path) -> None:
    """Its pages may still lie in the log beside it."""
    with LedgerReader(folder / f"{WHOLE}.sqlite") as reader:
        header = reader.header
    writer = LedgerWriter(folder / f"{BROKEN}.sqlite", header)
    try:
        with LedgerReader(writer.path) as reader:
            assert reader.header == header
        killed = folder / "killed"
        killed.mkdir()
        for part in (writer.path, writer.path.with_name(writer.path.name + "-wal")):
            shutil.copy(part, killed)
        with LedgerReader(killed / writer.path.name) as reader:
            assert reader.header == header
    finally:
        writer.close()


def test_own_14_a_start_that_fails_leaves_no_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(make_config(), ledger=LedgerConfig(ledger_dir=str(tmp_path / "ledger")))
    parts = make_fake_parts(config)

    def fail(*_: object, **__: object) -> None:
        raise MemoryError("no room for the blocks")

    monkeypatch.setattr(recording, "build_core", fail)
    with pytest.raises(MemoryError):
        recorded_core(parts, config)
    assert os.listdir(tmp_path / "ledger") == []


def test_own_14_a_ledger_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = Directed().header
    with monkeypatch.context() as patch:
        patch.setattr("ekiden.ledger.store._SCHEMA", "CREATE TABLE run (")
        with pytest.raises(sqlite3.Error):
            LedgerWriter(tmp_path / "run.sqlite", header)
    assert runs_in(tmp_path) == []
    assert os.listdir(tmp_path) == []
    LedgerWriter(tmp_path / "run.sqlite", header).close()
    with pytest.raises(FileExistsError):
        LedgerWriter(tmp_path / "run.sqlite", header)


def test_own_14_a_server_that_cannot_start_leaves_no_ledger(
    tmp_path: Path, reference_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine was ready, and recorded, before the start failed."""

    def fail(*_: object) -> None:
        raise UserError("the application cannot be made")

    monkeypatch.setattr("ekiden.api.app.create_app", fail)
    ledger = tmp_path / "ledger"
    command = ["serve", str(reference_dir / "llama"), "--backend", "fake", "--port", "0", "--ledger-dir", str(ledger)]
    assert main([*command, "--model-cache", str(tmp_path)]) == 2
    assert "the application cannot be made" in capsys.readouterr().err
    assert os.listdir(ledger) == []
