"""Frames: one reader for all who watch, whole pictures however they skip and come back, and the truth in bad cases."""

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ekiden.dashboard import frames as frames_module
from ekiden.dashboard import watched as watched_module
from ekiden.dashboard.frames import LEAST_PAUSE, MOST_PAUSE, Frames
from ekiden.dashboard.period import period
from ekiden.engine.interface import Health
from ekiden.evidence.harm import readings
from ekiden.evidence.reader import LedgerReader
from tests.unit.dashboard.growing import Browser, Clock, Growing, TellingEngine, frames_of
from tests.unit.evidence.directed import Directed
from tests.unit.evidence.recorded import finished

STEP = 9


@pytest.fixture
def growing(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Growing]:
    simulation = finished(getattr(request, "param", 11))
    run = Growing(tmp_path, simulation.header, simulation.kept.turns)
    yield run
    run.close()


def watching(run: Growing, guard: Any = None, **how: Any) -> tuple[Frames, TellingEngine, Clock]:
    engine, clock = TellingEngine(run.path), Clock()
    return frames_of(engine, clock, guard, **how), engine, clock


def advance(run: Growing, clock: Clock, turns: int = STEP) -> bool:
    """A few more turns; False when there are none."""
    if run.turn == len(run.turns):
        return False
    run.upto(min(len(run.turns), run.turn + turns))
    clock.now = run.ends_at
    return True


def whole(run: Growing) -> dict[str, Any]:
    with LedgerReader(run.path) as reader:
        found = period(reader, 0.0, None)
    return {bar.id: msgspec.to_builtins(bar) for bar in found.bars}


def plain(bars: dict[str, Any]) -> dict[str, Any]:
    return {name: msgspec.json.decode(msgspec.json.encode(bar)) for name, bar in bars.items()}


@pytest.mark.parametrize("growing", [0, 11, 25, 28], indirect=True)
def test_whoever_skips_frames_or_comes_back_has_the_whole_picture(growing: Growing) -> None:
    """One takes every frame, one takes some, one leaves and comes back by the id of its last event."""
    frames, _, clock = watching(growing)
    chance = random.Random(4)
    always, seldom, returning = Browser(frames), Browser(frames), Browser(frames)
    while advance(growing, clock):
        frames.look()
        always.take()
        if chance.random() < 0.3:
            seldom.take()
        if chance.random() < 0.5:
            returning.take()
        elif chance.random() < 0.3:
            returning.leave()
            bars, points, name = returning.bars, returning.points, returning.id
            returning = Browser(frames, name)
            returning.bars, returning.points = bars, points
    clock.now += 3.0
    frames.look()
    for browser in (always, seldom, returning):
        browser.take()
        assert browser.bars == plain(whole(growing))
        assert browser.points == always.points
        assert sorted(browser.points) == [float(second) for second in range(1, len(browser.points) + 1)]
    assert always.frame["reset"] is False
    tokens = sum(rows.turn.tokens for rows in growing.turns)
    assert sum(point["tokens_per_second"] for point in always.points.values()) == pytest.approx(tokens)


def test_ten_pages_cost_one_reader(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of the file does not depend on how many watch, and a frame is encoded once."""
    statements: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **named)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    advance(growing, Clock(), 60)
    counts = []
    for pages in (1, 10):
        frames, _, clock = watching(growing)
        clock.now = growing.ends_at
        browsers = [Browser(frames) for _ in range(pages)]
        for _ in range(6):
            frames.look()
            given = {id(event.data) for each in browsers if (event := frames.next_for(each.viewer)) is not None}
        assert len(given) == 1, "all are sent the same bytes"
        counts.append(len(statements))
        statements.clear()
    assert counts[0] == counts[1] > 0


def test_nobody_watches_nobody_reads(growing: Growing) -> None:
    runs: list[Any] = []
    frames, _, clock = watching(growing, spawn=runs.append)
    assert advance(growing, clock)
    assert runs == []
    first, second = Browser(frames), Browser(frames)
    assert len(runs) == 1
    first.leave()
    second.leave()
    runs[0]()  # it ends at once
    assert frames.looks_total == 0
    third = Browser(frames)
    assert len(runs) == 2
    frames.look()
    assert third.take()["reset"] is True
    third.leave()
    again = Browser(frames, third.id)
    assert again.take() is None, "no frame of who watched before is shown as new"


def test_after_a_long_sleep_it_begins_anew(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_module, "HISTORY_SECONDS", 1)
    frames, _, clock = watching(growing)
    asleep, awake = Browser(frames), Browser(frames)
    assert advance(growing, clock, 30)
    frames.look()
    asleep.take()
    name = asleep.id
    asleep.leave()
    while advance(growing, clock):
        frames.look()
        awake.take()
    clock.now += 30.0
    frames.look()
    back = Browser(frames, name)
    assert back.take()["reset"] is True
    assert len(back.points) <= 2


def test_a_new_run_begins_anew_for_everybody(growing: Growing, tmp_path: Path) -> None:
    frames, engine, clock = watching(growing)
    there = Browser(frames)
    assert advance(growing, clock, 40)
    frames.look()
    there.take()
    assert there.bars
    world = Directed()
    world.submit("of-the-next-engine", output=30)
    world.step(5)
    other = Growing(tmp_path / "next", world.header, world.kept.turns)
    other.upto(5)
    engine.ledger_path, clock.now = other.path, other.ends_at
    frames.look()
    came = Browser(frames, there.id)
    for browser in (there, came):
        frame = browser.take()
        assert (frame["reset"], frame["run_id"]) == (True, "directed")
        assert [bar["request_id"] for bar in browser.bars.values()] == ["of-the-next-engine"]
    other.close()


@pytest.mark.parametrize("name", ["", "x", "a:b", ":", "run:-1", "run:" + "9" * 40, "9" * 500, "seed-2:１"])
def test_an_id_that_is_none_of_ours_gets_all(growing: Growing, name: str) -> None:
    frames, _, clock = watching(growing)
    advance(growing, clock, 40)
    browser = Browser(frames, name)
    frames.look()
    assert browser.take()["reset"] is True


# --- what is told when things are not well


def test_states_of_the_engine(growing: Growing) -> None:
    frames, engine, clock = watching(growing)
    browser = Browser(frames)
    advance(growing, clock, 50)
    for health, state in (
        (Health.OK, "ok"),
        (Health.STARTING, "starting"),
        (Health.STALLED, "stalled"),
        (Health.DEAD, "dead"),
    ):
        engine.health = health
        frames.look()
        frame = browser.take()
        assert (frame["state"], frame["engine"]["health"], bool(frame["why"])) == (state, health.value, state != "ok")
        assert frame["turn"] == 50, "it goes on showing where the engine stood, and as of when"
        assert frame["as_of"] == clock.date()
    engine.health = Health.OK
    growing.close()  # nobody writes any more
    frames.look()
    assert browser.take()["state"] == "starting"


def test_lost_turns_are_told(growing: Growing) -> None:
    frames, _, clock = watching(growing)
    browser = Browser(frames)
    growing.upto(60, lost=(50, 51, 52))
    clock.now = growing.ends_at
    frames.look()
    assert browser.take()["state"] == "gap"


def test_without_a_ledger_the_statistics_are_left(tmp_path: Path) -> None:
    engine, clock = TellingEngine(None), Clock()
    engine.snapshot = msgspec.structs.replace(engine.snapshot, num_running=3, kv_blocks_used=9)
    frames = frames_of(engine, clock, recording=False)
    browser = Browser(frames)
    frames.look()
    frame = browser.take()
    assert (frame["state"], frame["engine"]["running"], frame["engine"]["kv_blocks_used"]) == ("no_ledger", 3, 9)
    assert "--no-ledger" in frame["why"]
    waiting = frames_of(engine, clock)
    browser = Browser(waiting)
    waiting.look()
    assert browser.take()["state"] == "starting"


def test_a_ledger_of_a_newer_format_or_none_at_all(tmp_path: Path, growing: Growing) -> None:
    newer = tmp_path / "newer.sqlite"
    header = msgspec.structs.replace(growing_header(growing), format=99)
    with sqlite3.connect(newer) as connection:
        connection.execute("CREATE TABLE run (header TEXT)")
        connection.execute("INSERT INTO run VALUES (?)", (msgspec.json.encode(header),))
    connection.close()
    engine, clock = TellingEngine(newer), Clock()
    frames = frames_of(engine, clock)
    browser = Browser(frames)
    frames.look()
    frame = browser.take()
    assert frame["state"] == "unreadable"
    assert "ledger format 99; this version reads" in frame["why"]
    engine.ledger_path = tmp_path / "gone.sqlite"
    frames.look()
    assert "no such ledger file" in browser.take()["why"]
    engine.ledger_path = growing.path  # and it comes back
    advance(growing, clock, 30)
    frames.look()
    assert (browser.take()["state"], browser.frame["reset"]) == ("ok", True)


def growing_header(run: Growing) -> Any:
    with LedgerReader(run.path) as reader:
        return reader.header


def test_a_fault_of_the_page_is_told_and_ends_nothing(growing: Growing, monkeypatch, caplog) -> None:
    frames, _, clock = watching(growing)
    browser = Browser(frames)
    advance(growing, clock, 30)
    with monkeypatch.context() as broken:
        broken.setattr(watched_module, "look", lambda *_, **__: 1 / 0)
        frames.look()
        assert "ZeroDivisionError" in browser.take()["why"]
        frames.look()
    assert caplog.text.count("the page could not look") == 1
    frames.look()
    assert browser.take()["state"] == "ok"


def test_a_date_that_jumps_changes_no_age(growing: Growing) -> None:
    frames, _, clock = watching(growing)
    browser = Browser(frames)
    advance(growing, clock, 50)
    ages = []
    for jump in (0.0, 3600.0, -7200.0):
        clock.jump = jump
        frames.look()
        frame = browser.take()
        ages.append((frame["age_seconds"], frame["at"], frame["pace"]["steps"]))
        assert frame["as_of"] == clock.date()
    assert len(set(ages)) == 1


def test_looks_that_cost_more_come_less_often(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processors: the page may take one hundredth of one, and no frame is so late that it would be called old."""
    monkeypatch.setattr(frames_module, "cores", lambda: 2)
    spent = iter([0.0, 0.001, 0.0, 0.010, 0.0, 0.020, 0.0, 9.0])
    frames, _, clock = watching(growing, cpu=lambda: next(spent))
    advance(growing, clock)
    pauses = []
    for _ in range(4):
        frames.look()
        pauses.append(round(frames.pause_seconds, 6))
    assert pauses == [LEAST_PAUSE, 1.0, 2.0, MOST_PAUSE]
    assert MOST_PAUSE < 3.0


def test_signals_come_from_the_guard_or_are_read_now_and_then(growing: Growing, monkeypatch) -> None:
    reads: list[float] = []

    def counted(reader: LedgerReader, *, at: float, **how: Any) -> Any:
        reads.append(at)
        return readings(reader, at=at, **how)

    monkeypatch.setattr(frames_module, "readings", counted)
    frames, _, clock = watching(growing)
    browser = Browser(frames)
    advance(growing, clock, 60)
    for seconds in (0.0, 0.5, 1.0, 4.5):
        clock.now = growing.ends_at + seconds
        frames.look()
    assert len(reads) == 2
    signals = {each["name"]: each for each in browser.take()["signals"]}
    assert signals["kv_used"]["value"] is not None
    assert signals["kv_used"]["formula"]
    guard = SimpleNamespace(mode="watch", readings={}, lock=busy_lock(), rules=None)
    guarded, _, clock = watching(growing, guard)
    guarded.look()
    browser = Browser(guarded)
    guarded.look()
    frame = browser.take()
    assert (frame["signals"], frame["guard"], len(reads)) == ([], None, 2), "a guard that is busy is not waited for"


def busy_lock() -> Any:
    return SimpleNamespace(acquire=lambda timeout: False)
