"""A stored run as a file: it is opened read-only, also while an engine is writing to it, and its rows are read.

A file that an earlier version wrote may lack columns that were added since: its rows get the defaults of the row types.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import starmap
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec

from ekiden.errors import UserError
from ekiden.ledger.records import FORMAT, TABLES, ControlRow, EndRow, RequestRow, RunHeader, TurnRow
from ekiden.ledger.retention import is_being_written

OLDEST_FORMAT: Final = 2
"""Ledgers from this format on can be read."""

Row = TypeVar("Row", TurnRow, RequestRow, EndRow, ControlRow)
_NOTHING: Final[Mapping[str, object]] = {}
_BLOBS: Final = frozenset({"detail", "inputs", "decisions"})


class LedgerReadError(UserError, ValueError):
    """What was asked for is not in the ledger, or cannot be read; the message says where it was looked for."""


class LedgerFile:
    """The rows of one stored run. Use as a context manager. Raises :class:`LedgerReadError` for a file that is none of
    ours, or not whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._selects: dict[tuple[type, bool], str] = {}
        if not path.is_file():
            raise LedgerReadError(f"{path}: no such ledger file")
        try:
            self._connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
        except sqlite3.Error as error:
            raise _unreadable(path, error) from error
        try:
            self.header = self._read_header()
        except BaseException:
            self._connection.close()
            raise

    def _read_header(self) -> RunHeader:
        try:
            (header,) = self._connection.execute("SELECT header FROM run").fetchone()
            found = msgspec.json.decode(header, type=RunHeader)
            tables = {name for (name,) in self._all("SELECT name FROM sqlite_master WHERE type = 'table'")}
            (bytes_needed,) = self._all("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")[0]
        except (sqlite3.Error, msgspec.DecodeError, TypeError) as error:
            raise _unreadable(self.path, error) from error
        if not OLDEST_FORMAT <= found.format <= FORMAT:
            readable = f"{OLDEST_FORMAT} to {FORMAT}"
            raise LedgerReadError(f"{self.path} has ledger format {found.format}; this version reads {readable}")
        if lacking := set(TABLES.values()) - tables:
            raise damaged(self.path, f"it has no table {', '.join(sorted(lacking))}")
        # Pages may lie in the log beside the file until a writer has ended.
        wanting = bytes_needed - self.path.stat().st_size
        log = self.path.with_name(self.path.name + "-wal")
        if wanting > 0 and not (log.exists() and log.stat().st_size) and not is_being_written(self.path):
            raise damaged(self.path, f"{wanting:,} bytes are missing at its end")
        return found

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        self._connection.close()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Also what turns out to be damaged only while it is read is told as the others are."""
        self.close()
        if isinstance(error, sqlite3.DatabaseError | msgspec.DecodeError):
            raise damaged(self.path, error) from error

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that is read inside is of one moment, whatever is being written meanwhile."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def _all(self, sql: str, *values: object) -> list[Any]:
        return self._connection.execute(sql, values).fetchall()

    def rows(self, sql: str, *values: object) -> list[Any]:
        """What a query of :mod:`ekiden.evidence.moment` finds."""
        return self._all(sql, *values)

    def _iterate(self, row: type[Row], where: str, *values: object, blobs: bool = True) -> Iterator[Row]:
        """The rows of a table that a condition selects. Without ``blobs`` those columns are empty, and not read."""
        found = self._connection.execute(f"{self._select(row, blobs)} {where}", values)
        return starmap(row, found)

    def _rows(self, row: type[Row], where: str, *values: object, blobs: bool = True) -> list[Row]:
        return list(self._iterate(row, where, *values, blobs=blobs))

    def _one(self, row: type[Row], where: str, *values: object) -> Row | None:
        return next(self._iterate(row, where, *values), None)

    def _select(self, row: type[Row], blobs: bool) -> str:
        if (row, blobs) in self._selects:
            return self._selects[row, blobs]
        columns = self.columns(row, TABLES[row], {} if blobs else dict.fromkeys(_BLOBS, b""))
        self._selects[row, blobs] = f"SELECT {columns} FROM {TABLES[row]}"  # noqa: S608 - names of our own
        return self._selects[row, blobs]

    def columns(self, row: type[tuple[object, ...]], table: str, empty: Mapping[str, object] = _NOTHING) -> str:
        """The fields of a row as SQL: columns of a table; a default for those in ``empty``, and for those that
        an earlier version did not store."""
        stored = {name for _, name, *_ in self._all(f"PRAGMA table_info({table})")}
        fields: tuple[str, ...] = row._fields  # type: ignore[attr-defined]  # a NamedTuple, which typing cannot say
        defaults = {**row._field_defaults, **empty}  # type: ignore[attr-defined]
        return ", ".join(name if name in stored and name not in empty else _literal(defaults[name]) for name in fields)


def _literal(value: object) -> str:
    """A default as SQL."""
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return "NULL" if value is None else repr(value)


def _unreadable(path: Path, error: Exception) -> LedgerReadError:
    return LedgerReadError(f"{path} is not a ledger of this version of Ekiden: {error}")


def damaged(path: Path, why: object) -> LedgerReadError:
    """The error for a file that is a ledger and cannot be read to its end."""
    return LedgerReadError(f"{path} is damaged: {why}")
