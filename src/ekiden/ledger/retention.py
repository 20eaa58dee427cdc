"""How long the evidence is kept: by age and by size, over all runs of one folder.

Runs that have ended are deleted whole, oldest first. Of the run that is being written the oldest turns are deleted, a
few at a time so that writing goes on; SQLite uses their pages again, so the file stops growing. A run that lost its
beginning still explains the requests that came later, but can no longer be replayed.
"""

import contextlib
import fcntl
import os
import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ekiden.config import LedgerConfig

SUFFIX: Final = ".sqlite"
CHECK_SECONDS: Final = 10.0
"""The time from one check to the next."""
CHUNK_TURNS: Final = 2_000
"""Turns deleted in one go."""


@dataclass(slots=True, kw_only=True)
class Retention:
    """``max_bytes`` and ``max_seconds`` are of the whole folder."""

    max_bytes: int
    max_seconds: float
    _due: float = field(default=0.0, init=False)

    def apply(self, connection: sqlite3.Connection, own: Path) -> None:
        """Delete what is too old or too much. ``connection`` writes to the run ``own``, which is never deleted."""
        now = time.time()
        if now < self._due:
            return
        runs = sorted(own.parent.glob("*" + SUFFIX), key=_modified)
        ended = [path for path in runs if path != own and not is_being_written(path)]
        total = sum(size_of(path) for path in runs)
        for path in ended:
            if total <= self.max_bytes and now - _modified(path) <= self.max_seconds:
                break
            total -= size_of(path)
            remove_run(path)
        more = self._trim(connection, too_much=total > self.max_bytes)
        self._due = now if more else now + CHECK_SECONDS

    def _trim(self, connection: sqlite3.Connection, *, too_much: bool) -> bool:
        """Delete the oldest turns of the run being written; True when more must go."""
        oldest, last_start, newest = connection.execute(
            "SELECT (SELECT min(turn) FROM turns), (SELECT start + took FROM turns ORDER BY turn DESC LIMIT 1), "
            "(SELECT max(turn) FROM turns)"
        ).fetchone()
        if oldest is None:
            return False
        horizon = last_start - self.max_seconds * 1e6
        aged = connection.execute(
            "SELECT max(turn) FROM turns WHERE turn < ? AND start < ?", (oldest + CHUNK_TURNS, horizon)
        ).fetchone()[0]
        free, pages = connection.execute("SELECT * FROM pragma_freelist_count, pragma_page_count").fetchone()
        full = too_much and free < pages // 20 and newest - oldest > CHUNK_TURNS
        upto = oldest + CHUNK_TURNS if full else aged
        if upto is None:
            return False
        connection.execute("BEGIN")
        of_ended = "request IN (SELECT request FROM ends WHERE turn <= ?)"
        for table, old in (("events", of_ended), ("requests", of_ended), ("ends", "turn <= ?"), ("turns", "turn <= ?")):
            connection.execute(f"DELETE FROM {table} WHERE {old}", (upto,))  # noqa: S608 - no values
        connection.execute("COMMIT")
        return True


def is_being_written(path: Path) -> bool:
    """True while a live process holds the run's lock."""
    return _lock_is_held(path) is True


def was_killed(path: Path) -> bool:
    """True when the run's writer is gone and had not closed it, which takes the lock away."""
    return _lock_is_held(path) is False


def _lock_is_held(path: Path) -> bool | None:
    """None where there is no lock."""
    try:
        handle = os.open(path.with_suffix(".lock"), os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def size_of(path: Path) -> int:
    """Bytes of a run on disk, its write-ahead log included."""
    return sum(part.stat().st_size for part in _parts(path) if part.exists())


def remove_run(path: Path) -> None:
    """Delete a run that nobody writes."""
    for part in _parts(path):
        part.unlink(missing_ok=True)


def _parts(path: Path) -> list[Path]:
    return [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm")), path.with_suffix(".lock")]


def _modified(path: Path) -> float:
    times = [0.0]
    for part in _parts(path)[:2]:
        with contextlib.suppress(FileNotFoundError):  # another process may be tidying up too
            times.append(part.stat().st_mtime)
    return max(times)


def ledger_folder(config: LedgerConfig) -> Path:
    """Where runs are recorded."""
    if config.ledger_dir is not None:
        return Path(config.ledger_dir).expanduser()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "ekiden" / "ledger"


def runs_in(folder: Path) -> list[Path]:
    """The stored runs of a folder, newest first."""
    return sorted(folder.glob("*" + SUFFIX), reverse=True) if folder.is_dir() else []
