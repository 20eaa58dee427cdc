"""Rows on disk: one SQLite file for each run, written by one thread.

Rules:
- ``put`` never waits. The queue is bounded; when it is full the rows of a turn are dropped and counted, and the gap in
  the turns' numbers tells a reader.
- A commit at most ``FLUSH_SECONDS`` after the first row that waits for one, in WAL mode with ``synchronous=NORMAL``:
  an engine that is killed loses less than half a second, and the file stays whole.
- While a run is being written its file is locked (``flock`` on ``<run>.lock``), so that retention in another process
  leaves it alone. The lock goes with the process, however that ends.
- A file gets its name once its header is in it, so that no reader finds one without.
"""

import errno
import fcntl
import logging
import os
import sqlite3
import threading
from collections import deque
from itertools import chain
from pathlib import Path
from typing import Final, get_type_hints

import msgspec

from ekiden.ledger.records import TABLES, ControlRow, EndRow, EventRow, RequestRow, Rows, RunHeader, TurnRow
from ekiden.ledger.retention import Retention

logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 0.2
MAX_PENDING: Final = 20_000
"""Turns that may wait to be written: tens of megabytes, and minutes of a disk that does not answer."""

_KINDS: Final = {
    int: "INTEGER NOT NULL",
    int | None: "INTEGER",
    str: "TEXT NOT NULL",
    str | None: "TEXT",
    bytes: "BLOB NOT NULL",
}


def _table(row: type[tuple[object, ...]], rest: str = ")") -> str:
    """A table with the fields of a row as columns."""
    columns = [f"{field} {_KINDS[kind]}" for field, kind in get_type_hints(row).items()]
    return f"CREATE TABLE {TABLES[row]} ({', '.join(columns)}{rest};"


_SCHEMA: Final = f"""
CREATE TABLE run (header BLOB NOT NULL);
{_table(TurnRow, ", PRIMARY KEY (turn))")}
{_table(EventRow, ", PRIMARY KEY (request, turn, place)) WITHOUT ROWID")}
{_table(RequestRow, ", PRIMARY KEY (request))")}
{_table(EndRow, ", PRIMARY KEY (request))")}
{_table(ControlRow)}
CREATE TABLE live (request INTEGER PRIMARY KEY);
CREATE INDEX requests_by_id ON requests (request_id);
CREATE INDEX ends_by_e2e ON ends (e2e);
CREATE INDEX ends_by_turn ON ends (turn);
"""


_ROWS_AT_ONCE: Final = (256, 64, 16, 4, 1)
"""SQLite lets go of Python's lock for each statement, and a busy engine is slow to give it back: so few statements."""


def _inserts(table: str, row: type[tuple[object, ...]]) -> dict[int, str]:
    """Statements that insert several rows at once, by the number of rows."""
    count = len(row._fields)  # type: ignore[attr-defined]  # a NamedTuple, for which typing has no name
    marks = f"({', '.join('?' * count)})"
    return {rows: f"INSERT INTO {table} VALUES {', '.join([marks] * rows)}" for rows in _ROWS_AT_ONCE}  # noqa: S608


_INSERTS: Final = {table: _inserts(table, row) for row, table in TABLES.items()}


def _make_file(path: Path, header: RunHeader) -> None:
    """A ledger of no turns, which is there whole or not at all. Raises FileExistsError for a run that there is."""
    making = path.with_name(path.name + ".new")
    try:
        making.unlink(missing_ok=True)  # of a process that was killed
        os.close(os.open(making, os.O_CREAT | os.O_EXCL, 0o600))
        connection = sqlite3.connect(making, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=MEMORY")
            connection.executescript(f"BEGIN;{_SCHEMA}")
            connection.execute("INSERT INTO run VALUES (?)", (msgspec.json.encode(header),))
            connection.execute("COMMIT")  # on the disk before the file has its name, should the power fail
        finally:
            connection.close()
        if path.exists():
            raise FileExistsError(errno.EEXIST, "there is such a run already")
        making.rename(path)
    finally:
        making.unlink(missing_ok=True)


class LedgerWriter:
    """Writes the rows of a run to a file. Raises OSError or sqlite3.Error when it cannot be made."""

    def __init__(
        self, path: Path, header: RunHeader, retention: Retention | None = None, *, max_pending: int = MAX_PENDING
    ) -> None:
        self.path = path
        self.dropped = 0
        """Turns that were lost because the queue was full or the disk refused them."""
        self._max_pending = max_pending
        self._retention = retention
        self._pending: deque[Rows] = deque()
        self._stopping = threading.Event()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            _make_file(path, header)
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
        except BaseException:
            self._let_go()
            raise
        self._thread = threading.Thread(target=self._run, name="ekiden-ledger", daemon=True)
        self._thread.start()

    def put(self, rows: Rows) -> None:
        if len(self._pending) >= self._max_pending:
            self.dropped += 1
        else:
            self._pending.append(rows)

    def close(self) -> None:
        """Write what is left and let go of the file. Harmless when repeated."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._thread.join()
        self._connection.close()
        self._let_go()

    def _let_go(self) -> None:
        self.path.with_suffix(".lock").unlink(missing_ok=True)
        os.close(self._lock)

    def _run(self) -> None:
        while not self._stopping.wait(FLUSH_SECONDS):
            self._flush()
            if self._retention is not None:
                self._retention.apply(self._connection, self.path)
        self._flush()

    def _flush(self) -> None:
        """One transaction with all that waits."""
        batch = [self._pending.popleft() for _ in range(len(self._pending))]
        if not batch:
            return
        try:
            self._write(batch)
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if self.dropped == 0:
                logger.error("the ledger cannot write to %s: %s; turns are being lost", self.path, error)
            self.dropped += len(batch)

    def _write(self, batch: list[Rows]) -> None:
        self._connection.execute("BEGIN")
        for table, statements in _INSERTS.items():
            of_turns = ([rows.turn] if table == "turns" else getattr(rows, table) for rows in batch)
            found, place = list(chain.from_iterable(of_turns)), 0
            for size, statement in statements.items():
                while len(found) - place >= size:
                    self._connection.execute(statement, list(chain.from_iterable(found[place : place + size])))
                    place += size
        # The list of the requests in the engine, so that the live view of a long run needs no search for them.
        if arrived := [request.request for rows in batch for request in rows.requests]:
            self._connection.execute(
                "INSERT INTO live SELECT request FROM requests WHERE request BETWEEN ? AND ? AND refusal IS NULL",
                (arrived[0], arrived[-1]),
            )
        if any(rows.ends for rows in batch):
            self._connection.execute(
                "DELETE FROM live WHERE request IN (SELECT request FROM ends WHERE turn BETWEEN ? AND ?)",
                (batch[0].turn.turn, batch[-1].turn.turn),
            )
        self._connection.execute("COMMIT")
