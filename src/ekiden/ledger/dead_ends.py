"""The ends of the requests that an engine had when its process died, written into its run by the process that started
it: a dead engine writes nothing.

No turn of the run ended them, so they have the number of the turn that would have come next. A replay, which drives the
turns there are, does not meet them.
"""

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ekiden.ledger.blobs import EndDetail
from ekiden.ledger.details import digest
from ekiden.ledger.records import ENGINE_ENDED, EndRow, EventKind, RunHeader

NOT_RECORDED: Final = "the engine ended without recording the request's end"


class DeadEnd(NamedTuple):
    """How a request left a dead engine: a FinishReason or ENGINE_ENDED. Times are seconds on the engine's clock."""

    reason: str
    message: str | None = None
    token_ids: Sequence[int] = ()
    first_token_time: float | None = None


def record_dead_ends(path: Path, ends: Mapping[str, DeadEnd], at: float, cause: str) -> None:
    """Close the run of an engine that died at ``at``. ``ends``: by the requests' ids.

    One that the ledger knows and ``ends`` does not gets the reason ENGINE_ENDED. Raises sqlite3.Error and OSError.
    """
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        header = msgspec.json.decode(connection.execute("SELECT header FROM run").fetchone()[0], type=RunHeader)
        (turn,) = connection.execute("SELECT coalesce(max(turn), 0) + 1 FROM turns").fetchone()

        def micros(seconds: float) -> int:
            return round(seconds * 1e6) - header.clock_base

        live = connection.execute(
            "SELECT request, request_id, arrival FROM requests WHERE request IN (SELECT request FROM live)"
        ).fetchall()
        rows = []
        for number, request_id, arrival in live:
            end = ends.get(request_id) or DeadEnd(ENGINE_ENDED, f"{NOT_RECORDED}: {cause}")
            (preemptions,) = connection.execute(
                "SELECT count(*) FROM events WHERE request = ? AND kind = ?", (number, EventKind.PREEMPTED)
            ).fetchone()
            (admitted,) = connection.execute(
                "SELECT min(t.start + e.late * t.took) FROM events e JOIN turns t ON t.turn = e.turn "
                "WHERE e.request = ? AND e.kind = ?",
                (number, EventKind.ADMITTED),
            ).fetchone()
            first = None if end.first_token_time is None else micros(end.first_token_time)
            detail = msgspec.msgpack.encode(EndDetail(output_digest=digest(end.token_ids), message=end.message))
            rows.append(
                EndRow(
                    number, turn, micros(at), micros(at) - arrival, end.reason, len(end.token_ids), 0, preemptions,
                    admitted, first, 0, detail,
                )
            )  # fmt: skip
        connection.execute("BEGIN")
        marks = ", ".join("?" * len(EndRow._fields))
        connection.executemany(f"INSERT INTO ends VALUES ({marks})", rows)  # noqa: S608 - no values
        connection.execute("DELETE FROM live")
        connection.execute("COMMIT")
    path.with_suffix(".lock").unlink(missing_ok=True)
