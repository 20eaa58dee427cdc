"""Ledgers that earlier versions recorded explain and replay as they did then (see tests/data/ledgers/README.md)."""

import gzip
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ekiden.evidence.decision_replay import replay
from ekiden.evidence.explain import explain, worst
from ekiden.evidence.live import live_view
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.why import Question, why
from ekiden.ledger.records import RequestRow

DATA = Path(__file__).parents[2] / "data" / "ledgers"
RUNS = [path.name.removesuffix(".sqlite.gz") for path in sorted(DATA.glob("*.sqlite.gz"))]


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """The ledger of a run, and what was read from it when it was recorded."""
    path = tmp_path / f"{request.param}.sqlite"
    path.write_bytes(gzip.decompress((DATA / f"{request.param}.sqlite.gz").read_bytes()))
    return path, json.loads(gzip.decompress((DATA / f"{request.param}.json.gz").read_bytes()))


def plain(value: object) -> Any:
    return json.loads(msgspec.json.encode(value))


def of_then(now: Any, then: Any) -> Any:
    """What is told now, without the fields that did not exist then. Times are whole microseconds, but as floats."""
    if isinstance(now, dict) and isinstance(then, dict):
        return {name: of_then(value, then[name]) for name, value in now.items() if name in then}
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        return [of_then(new, old) for new, old in zip(now, then, strict=True)]
    if isinstance(now, float) and isinstance(then, float) and round(now, 9) == round(then, 9):
        return then
    return now


def plain_of_then(now: object, then: Any) -> Any:
    return of_then(plain(now), then)


def causes(reader: LedgerReader, row: RequestRow) -> dict[str, int]:
    return {cause.cause: round(cause.seconds * 1e6) for cause in explain(reader, row).causes}


def stop_after(path: Path, turn: int) -> None:
    """Make the ledger what it was after a turn."""
    with sqlite3.connect(path) as connection:
        for table in ("turns", "events", "requests", "ends", "controls"):
            connection.execute(f"DELETE FROM {table} WHERE turn > ?", (turn,))
        connection.execute(
            "INSERT INTO live SELECT request FROM requests WHERE refusal IS NULL AND request NOT IN "
            "(SELECT request FROM ends)"
        )
    connection.close()


def test_there_are_runs() -> None:
    assert len(RUNS) == 7


def test_every_request_is_explained_as_it_was(run: tuple[Path, dict[str, Any]]) -> None:
    path, then = run
    with LedgerReader(path) as reader:
        requests = reader.all_requests()
        assert [row.request for row in requests] == [found["request"] for found in then["requests"]]
        for row, found in zip(requests, then["requests"], strict=True):
            assert causes(reader, row) == found["causes"]
            assert plain_of_then(explain(reader, row), found["explanation"]) == found["explanation"]
            for question, answer in found["why"].items():
                assert plain_of_then(why(reader, row, Question(question)), answer) == answer
        assert plain_of_then(worst(reader, 10), then["worst"]) == then["worst"]


def nearest_rank(values: Sequence[float], levels: Sequence[int], *, counts: Sequence[int]) -> list[float]:
    """The rule by which the live view's percentiles were worked out when the ledgers were recorded."""
    ordered = sorted(value for value, count in zip(values, counts, strict=True) for _ in range(count))
    return [ordered[-(-len(ordered) * level // 100) - 1] for level in levels]


def test_the_live_view_is_what_it_was(run: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the percentile rule of then, every number is the same."""
    monkeypatch.setattr("ekiden.evidence.live_view.percentiles", nearest_rank)
    path, then = run
    with LedgerReader(path) as reader:
        assert plain_of_then(live_view(reader, window_seconds=1e6), then["live"]) == then["live"]
    for turn in sorted(map(int, then["stopped_after"]), reverse=True):
        found = then["stopped_after"][str(turn)]
        stop_after(path, turn)
        with LedgerReader(path) as reader:
            assert plain_of_then(live_view(reader, window_seconds=1.0), found["live"]) == found["live"]
            in_flight = [row for row in reader.all_requests() if reader.end(row.request) is None]
            assert {row.request_id: causes(reader, row) for row in in_flight} == found["causes"]
        with sqlite3.connect(path) as connection:
            connection.execute("DELETE FROM live")
        connection.close()


def test_it_decides_the_same_again(run: tuple[Path, dict[str, Any]]) -> None:
    path, then = run
    with LedgerReader(path) as reader:
        result = replay(reader.header, reader.everything())
    assert result.difference is None
    assert {"identical": True, "turns": result.turns, "tokens": result.tokens} == then["replay"]
