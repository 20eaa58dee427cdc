"""The file: killed writers, full queues, a disk that refuses, retention by age and size."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ekiden.evidence.reader import LedgerReader, LedgerReadError
from ekiden.evidence.runs import find_request, open_run
from ekiden.ledger.records import Rows, RunHeader
from ekiden.ledger.retention import Retention, is_being_written, runs_in, size_of
from ekiden.ledger.store import LedgerWriter
from tests.unit.evidence.directed import Directed

LOST_AT_MOST = 0.5


def some_turns(count: int) -> tuple[RunHeader, list[Rows]]:
    world = Directed()
    world.submit("r", output=1000)
    world.step(count)
    return world.header, world.kept.turns


def test_a_killed_writer_loses_less_than_half_a_second_and_the_file_stays_whole(tmp_path: Path) -> None:
    """Under load, killed with SIGKILL three times over."""
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        child = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "loaded_engine.py"), str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        )
        assert child.stdout is not None
        lines = []
        for line in child.stdout:
            lines.append(line)
            if float(line.split()[1]) > 1.0 + 0.13 * attempt:  # seconds of load
                break
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.read().splitlines()
        child.wait()
        child.stdout.close()
        path = folder / "run.sqlite"
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()
        with LedgerReader(path) as reader:
            first, last = reader.bounds()
            assert first == 1
            assert len(reader.turns(first, last)) == last, "turns are missing in the middle"
            whole = [line.split() for line in lines if len(line.split()) == 2]
            known = {turn: float(at) for turn, at in whole}
            killed_at = max(known.values())
            assert killed_at - known[str(last)] < LOST_AT_MOST
        assert not is_being_written(path)


def test_a_full_queue_drops_turns_and_the_gap_shows(tmp_path: Path) -> None:
    header, turns = some_turns(60)
    writer = LedgerWriter(tmp_path / "run.sqlite", header, max_pending=25)
    for rows in turns:
        writer.put(rows)
    writer.close()
    assert writer.dropped > 0
    with LedgerReader(writer.path) as reader:
        stored = reader.turns(*reader.bounds())
        assert len(stored) == 60 - writer.dropped


def test_a_disk_that_refuses_costs_turns_and_never_the_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    header, turns = some_turns(10)
    writer = LedgerWriter(tmp_path / "run.sqlite", header)
    writer.put(turns[0])
    writer.put(turns[0])  # the same turn twice is what the file cannot take
    writer.close()
    assert writer.dropped == 2
    assert "turns are being lost" in caplog.text


def test_a_file_that_exists_is_not_written_over(tmp_path: Path) -> None:
    header, _ = some_turns(1)
    (tmp_path / "run.sqlite").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        LedgerWriter(tmp_path / "run.sqlite", header)
    assert (tmp_path / "run.sqlite").read_bytes() == b"precious"


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    header, _ = some_turns(1)
    writer = LedgerWriter(tmp_path / "run.sqlite", header)
    assert os.stat(writer.path).st_mode & 0o077 == 0
    writer.close()


def ended_run(folder: Path, name: str, age: float) -> Path:
    header, turns = some_turns(50)
    writer = LedgerWriter(folder / f"{name}.sqlite", header)
    for rows in turns:
        writer.put(rows)
    writer.close()
    moment = time.time() - age
    os.utime(writer.path, (moment, moment))
    return writer.path


def test_runs_go_by_age_and_never_one_that_is_being_written(tmp_path: Path) -> None:
    old, young = ended_run(tmp_path, "old", 1000.0), ended_run(tmp_path, "young", 10.0)
    header, turns = some_turns(50)
    live = LedgerWriter(tmp_path / "live.sqlite", header)
    os.utime(live.path, (0, 0))
    own = LedgerWriter(tmp_path / "own.sqlite", header)
    for rows in turns:
        own.put(rows)
    own._flush()
    Retention(max_bytes=10**9, max_seconds=100.0).apply(own._connection, own.path)
    assert not old.exists()
    assert young.exists()
    assert live.path.exists()
    own.close()
    live.close()


def test_runs_go_by_size_oldest_first(tmp_path: Path) -> None:
    paths = [ended_run(tmp_path, f"run{number}", 100.0 - number) for number in range(4)]
    header, _ = some_turns(1)
    own = LedgerWriter(tmp_path / "own.sqlite", header)
    sizes = sum(size_of(path) for path in paths)
    Retention(max_bytes=size_of(own.path) + sizes * 5 // 8, max_seconds=1e9).apply(own._connection, own.path)
    assert [path.exists() for path in paths] == [False, False, True, True]
    own.close()


def test_the_oldest_turns_of_a_long_run_go_with_their_requests(tmp_path: Path) -> None:
    world = Directed()
    for number in range(60):
        world.submit(f"r{number}", output=4)
        world.run()
        world.wait(1.0)
    writer = LedgerWriter(tmp_path / "run.sqlite", world.header)
    for rows in world.kept.turns:
        writer.put(rows)
    writer._flush()
    Retention(max_bytes=10**9, max_seconds=20.0).apply(writer._connection, writer.path)
    writer.close()
    with LedgerReader(writer.path) as reader:
        first, _ = reader.bounds()
        assert first > 100
        assert reader.requests_named("r0") == []
        assert reader.requests_named("r59")
        assert all(end.turn >= first for end in reader.all_ends())


def test_runs_and_requests_are_found_by_name(tmp_path: Path) -> None:
    for name in ("20250101-000000-aaaa", "20250102-000000-bbbb"):
        ended_run(tmp_path, name, 0.0)
    assert [path.stem for path in runs_in(tmp_path)] == ["20250102-000000-bbbb", "20250101-000000-aaaa"]
    for named, stem in (
        ("last", "20250102-000000-bbbb"),
        ("20250101", "20250101-000000-aaaa"),
        (str(tmp_path / "20250101-000000-aaaa.sqlite"), "20250101-000000-aaaa"),
    ):
        with open_run(tmp_path, named) as reader:
            assert reader.path.stem == stem
    with pytest.raises(LedgerReadError, match="begins the names of 2 runs"):
        open_run(tmp_path, "2025")
    with pytest.raises(LedgerReadError, match="no run 'x'"):
        open_run(tmp_path, "x")
    reader, rows = find_request(tmp_path, "r")
    assert reader.path.stem == "20250102-000000-bbbb"
    assert rows[0].request_id == "r"
    reader.close()
    with pytest.raises(LedgerReadError, match=r"no request 'unknown' in .* \(2 recorded runs\)"):
        find_request(tmp_path, "unknown")
