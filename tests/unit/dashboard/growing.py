"""A recorded run that grows turn by turn, as a page sees it, and an engine that tells what a test says."""

import fcntl
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ekiden.dashboard.frames import Event, Frames, Viewer
from ekiden.engine.interface import EngineStats, Health
from ekiden.ledger.records import Rows, RunHeader
from ekiden.ledger.store import LedgerWriter

TABLES = ("turns", "events", "requests", "ends", "controls")


def write(path: Path, header: RunHeader, turns: list[Rows]) -> Path:
    writer = LedgerWriter(path, header)
    for rows in turns:
        writer.put(rows)
    writer.close()
    return path


class Growing:
    """The file of a run that holds its first turns: more of them with :meth:`upto`. ``writing``: somebody holds its
    lock."""

    def __init__(self, folder: Path, header: RunHeader, turns: list[Rows], *, writing: bool = True) -> None:
        self._whole = write(folder / "whole" / "run.db", header, turns)
        self.path = write(folder / f"{header.run_id}.sqlite", header, [])
        self.turns = turns
        self.turn = 0
        self._connection = sqlite3.connect(self.path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("ATTACH ? AS whole", (str(self._whole),))
        self._lock: int | None = None
        if writing:
            self._lock = os.open(self.path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    @property
    def ends_at(self) -> float:
        """When the newest turn ended, on the engine's clock."""
        return self.turns[self.turn - 1].turn.end / 1e6 if self.turn else 0.0

    def upto(self, turn: int, *, lost: tuple[int, ...] = ()) -> None:
        """Also the turns up to this one, but for those that were lost."""
        run = self._connection.execute
        run("BEGIN")
        gone = ", ".join(map(str, lost)) or "0"
        for table in TABLES:
            run(
                f"INSERT INTO main.{table} SELECT * FROM whole.{table} WHERE turn > ? AND turn <= ? "
                f"AND turn NOT IN ({gone})",
                (self.turn, turn),
            )
        run("DELETE FROM main.live")
        run(
            "INSERT INTO main.live SELECT request FROM main.requests WHERE refusal IS NULL AND request NOT IN (SELECT "
            "request FROM main.ends)"
        )
        run("COMMIT")
        self.turn = turn

    def close(self) -> None:
        self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class TellingEngine:
    """As much of an engine as frames ask for."""

    def __init__(self, path: Path | None) -> None:
        self.ledger_path = path
        self.health = Health.OK
        self.snapshot = EngineStats(kv_blocks_total=64)

    def stats(self) -> EngineStats:
        return self.snapshot


class Clock:
    """The engine's clock, and the date, which may jump."""

    def __init__(self) -> None:
        self.now = 0.0
        self.jump = 0.0

    def engine(self) -> float:
        return self.now

    def date(self) -> float:
        return 1.8e9 + self.now + self.jump


def frames_of(engine: Any, clock: Clock, guard: Any = None, *, recording: bool = True, **how: Any) -> Frames:
    """Frames whose looks a test takes."""
    how.setdefault("spawn", lambda run: None)
    return Frames(engine, guard, recording=recording, clock=clock.engine, date=clock.date, **how)


class Browser:
    """A page that keeps what frames bring, as the page's script does."""

    def __init__(self, frames: Frames, last_event_id: str | None = None, wake: Callable[[], None] = lambda: None):
        self.frames = frames
        self.viewer: Viewer = frames.join(wake, last_event_id)
        self.bars: dict[str, Any] = {}
        self.points: dict[float, Any] = {}
        self.frame: Any = None
        self.id = last_event_id
        self.events = 0

    def take(self) -> Any:
        """The newest frame; None when it has that already."""
        event: Event | None = self.frames.next_for(self.viewer)
        if event is None:
            return None
        self.events += 1
        lines = event.data.decode().split("\n")
        assert lines[0] == "event: frame"
        assert lines[-2:] == ["", ""]
        self.id = next((line.removeprefix("id: ") for line in lines if line.startswith("id: ")), self.id)
        self.frame = msgspec.json.decode(next(line for line in lines if line.startswith("data: "))[6:])
        if self.frame["reset"]:
            self.bars, self.points = {}, {}
        self.bars |= {bar["id"]: bar for bar in self.frame.get("bars", [])}
        self.points |= {point["t"]: point for point in self.frame.get("series", [])}
        return self.frame

    def leave(self) -> None:
        self.frames.leave(self.viewer)
