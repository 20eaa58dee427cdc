"""Finds runs, and requests by their ids, among the recorded ones of a folder.

A file that is damaged is named once, as a warning in the log, where others can be read in its place.
"""

import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ekiden.evidence.ledger_file import damaged
from ekiden.evidence.reader import LedgerReader, LedgerReadError
from ekiden.ledger.records import RequestRow
from ekiden.ledger.retention import runs_in

logger = logging.getLogger(__name__)

_named: set[Path] = set()
"""Files that this process has told it cannot read."""


def open_runs(folder: Path) -> Iterator[LedgerReader]:
    """The runs of a folder, newest first, opened; the caller closes each.

    A file that cannot be read is left out, and named in the log the first time.
    """
    for path in runs_in(folder):
        try:
            yield LedgerReader(path)
        except LedgerReadError as error:
            _leave_out(path, error)


def _leave_out(path: Path, error: Exception) -> None:
    if path not in _named and path.exists():  # else retention has deleted it meanwhile
        _named.add(path)
        logger.warning("a recorded run is left out: %s", error)


def open_run(folder: Path, run: str) -> LedgerReader:
    """A run given by its id, the beginning of its id, its path, or ``last``: the newest that can be read."""
    if run == "last" and (newest := next(open_runs(folder), None)) is not None:
        return newest
    path = Path(run)
    if path.is_file():
        return LedgerReader(path)
    matching = [path for path in runs_in(folder) if path.stem.startswith(run)]
    if len(matching) == 1:
        return LedgerReader(matching[0])
    if matching:
        raise LedgerReadError(f"{run!r} begins the names of {len(matching)} runs in {folder}; give more of it")
    raise LedgerReadError(f"no run {run!r} in {folder} (`ekiden replay --list` shows the recorded ones)")


def find_request(folder: Path, request_id: str) -> tuple[LedgerReader, list[RequestRow]]:
    """The newest run of a folder that knows a request, opened, and the requests with that id.

    Raises :class:`LedgerReadError` when no run does.
    """
    for reader in open_runs(folder):
        rows: list[RequestRow] = []
        try:
            rows = reader.requests_named(request_id)
        except sqlite3.DatabaseError as error:
            _leave_out(reader.path, damaged(reader.path, error))
        if rows:
            return reader, rows
        reader.close()
    raise LedgerReadError(
        f"no request {request_id!r} in {folder} ({len(runs_in(folder))} recorded runs); the id is the one in the "
        "response's x-ekiden-request-id header, and requests before the ledger's retention are gone"
    )
