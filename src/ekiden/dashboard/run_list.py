"""The recorded runs of a folder, as the page lists them. A run that cannot be read is listed with the reason."""

import sqlite3
from pathlib import Path
from typing import Final

from ekiden.dashboard.shapes import Run
from ekiden.evidence.ledger_file import damaged
from ekiden.evidence.period_rows import PeriodRows
from ekiden.evidence.reader import LedgerReader, LedgerReadError
from ekiden.evidence.runs import find_request
from ekiden.ledger.records import RequestRow
from ekiden.ledger.retention import is_being_written, runs_in

MOST_RUNS: Final = 200


def list_runs(folder: Path) -> list[Run]:
    """The newest runs first, at most :data:`MOST_RUNS`."""
    return [one for path in runs_in(folder)[:MOST_RUNS] if (one := _run(path)) is not None]


def open_named(folder: Path, run: str) -> LedgerReader:
    """A run by its whole id: nobody who asks the server may have it open other files. Raises :class:`LedgerReadError`
    for one that is not there, or cannot be read."""
    path = next((path for path in runs_in(folder) if path.stem == run), None)
    if path is None:
        raise LedgerReadError(f"no run {run!r} is recorded here")
    return LedgerReader(path)


def _run(path: Path) -> Run | None:
    """None when retention has deleted it meanwhile."""
    try:
        with LedgerReader(path) as reader, reader.snapshot():
            return _readable(reader)
    except (LedgerReadError, sqlite3.Error) as error:
        told = error if isinstance(error, LedgerReadError) else damaged(path, error)
        return Run(run_id=path.stem, readable=False, why=f"{told}") if path.exists() else None


def _readable(reader: LedgerReader) -> Run:
    header, rows = reader.header, PeriodRows(reader)
    return Run(
        run_id=header.run_id,
        readable=True,
        model=header.model_id,
        version=header.version,
        started=header.started,
        seconds=rows.end_of(rows.last) / 1e6 if rows.last else 0.0,
        turns=rows.last - rows.first + 1 if rows.last else 0,
        first_turn=rows.first or None,
        requests=reader.requests_newest(),
        recording=is_being_written(reader.path),
        lineage=header.lineage.digest,
        batching=str(header.scheduler.get("batching")),
        order=str(header.scheduler.get("scheduling_policy")),
        slots=int(header.scheduler.get("max_num_seqs", 0)),
    )


def open_with_request(folder: Path, request_id: str, run: str | None) -> tuple[LedgerReader, list[RequestRow]]:
    """The run that is named, or the newest that knows the request, and the answers of that call.

    Raises :class:`LedgerReadError` for a request that no run knows, or not this one.
    """
    if run is None:
        return find_request(folder, request_id)
    reader = open_named(folder, run)
    rows = reader.requests_named(request_id)
    if not rows:
        with reader:
            raise LedgerReadError(f"no request {request_id!r} in run {reader.header.run_id}")
    return reader, rows
