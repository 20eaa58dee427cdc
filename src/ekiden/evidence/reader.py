"""Reads stored runs. Opens files read-only, also while an engine is writing to them."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from ekiden.evidence.recorded_requests import request_detail_of
from ekiden.ledger.records import (
    READABLE,
    REFUSED,
    ControlRow,
    EndRow,
    EventKind,
    EventRow,
    RequestRow,
    Rows,
    RunHeader,
    TurnRow,
)
from ekiden.ledger.retention import runs_in

_CHUNK = 2_000


class LedgerReadError(ValueError):
    """What was asked for is not in the ledger, or cannot be read; the message says where it was looked for."""


class StepSums(NamedTuple):
    """Sums over a range of turns, in microseconds: time, the part owed to prefill chunks, the part owed to swaps."""

    turns: int
    took: int
    prefill: int
    swapping: int


class BriefRequest(NamedTuple):
    """What a request is, without its detail. Times are microseconds of the run."""

    request: int
    request_id: str
    tenant: str
    arrival: int
    prompt_tokens: int
    max_tokens: int
    refusal: str | None


_BRIEF = ", ".join(f"r.{name}" for name in BriefRequest._fields)


class BriefTurn(NamedTuple):
    """A turn's measures, in microseconds and tokens."""

    turn: int
    start: int
    took: int
    decode_rows: int
    prefill_tokens: int
    swapped: int
    tokens: int

    @property
    def end(self) -> int:
        return self.start + self.took


class LedgerReader:
    """One stored run. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise LedgerReadError(f"{path}: no such ledger file")
        try:
            self._connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
            (header,) = self._connection.execute("SELECT header FROM run").fetchone()
            self.header = msgspec.json.decode(header, type=RunHeader)
        except (sqlite3.Error, msgspec.DecodeError, TypeError) as error:
            raise LedgerReadError(f"{path} is not a ledger of this version of Ekiden: {error}") from error
        if self.header.format not in READABLE:
            known = " and ".join(map(str, READABLE))
            raise LedgerReadError(f"{path} has ledger format {self.header.format}; this version reads {known}")

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> "LedgerReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _all(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that is read inside is of one moment, whatever is being written meanwhile."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    # --- requests

    def requests_named(self, request_id: str) -> list[RequestRow]:
        """Every request with this id, newest first; for a call of several answers all of them (``id-0``, ``id-1``)."""
        rows = self._all("SELECT * FROM requests WHERE request_id = ? ORDER BY request DESC", (request_id,))
        if not rows:
            low, high = f"{request_id}-0", f"{request_id}-:"  # ':' follows '9'
            rows = self._all(
                "SELECT * FROM requests WHERE request_id >= ? AND request_id < ? ORDER BY request", (low, high)
            )
        return [RequestRow(*row) for row in rows]

    def request(self, number: int) -> RequestRow | None:
        rows = self._all("SELECT * FROM requests WHERE request = ?", (number,))
        return RequestRow(*rows[0]) if rows else None

    def end(self, number: int) -> EndRow | None:
        rows = self._all("SELECT * FROM ends WHERE request = ?", (number,))
        return EndRow(*rows[0]) if rows else None

    def events(self, number: int) -> list[EventRow]:
        rows = self._all("SELECT * FROM events WHERE request = ? ORDER BY turn, place", (number,))
        return [EventRow(*row) for row in rows]

    def later_admitted(self, number: int, upto_turn: int) -> list[tuple[int, int, int]]:
        """Those that arrived after ``number`` and were admitted up to a turn: request, admission's and end's turn."""
        return self._all(
            "SELECT e.request, e.turn, coalesce(n.turn, ?) FROM events e LEFT JOIN ends n ON n.request = e.request "
            "WHERE e.request > ? AND e.request <= ? AND e.kind = ? AND e.turn <= ? ORDER BY e.turn",
            (2**62, number, self._last_request_before(upto_turn), EventKind.ADMITTED, upto_turn),
        )

    def _last_request_before(self, turn: int) -> int:
        """The highest number given out up to a turn. Numbers and turns of arrival grow together."""
        low, high = 0, self._all("SELECT coalesce(max(request), 0) FROM requests")[0][0]
        while low < high:
            middle = (low + high + 1) // 2
            found = self._all("SELECT turn FROM requests WHERE request >= ? ORDER BY request LIMIT 1", (middle,))
            low, high = (middle, high) if found and found[0][0] <= turn else (low, middle - 1)
        return low

    def all_requests(self) -> list[RequestRow]:
        return [RequestRow(*row) for row in self._all("SELECT * FROM requests ORDER BY request")]

    def all_ends(self) -> list[EndRow]:
        return [EndRow(*row) for row in self._all("SELECT * FROM ends ORDER BY request")]

    def all_events(self) -> Iterator[EventRow]:
        return (
            EventRow(*row) for row in self._connection.execute("SELECT * FROM events ORDER BY request, turn, place")
        )

    def all_controls(self) -> list[ControlRow]:
        return [ControlRow(*row) for row in self._all("SELECT * FROM controls ORDER BY turn")]

    def worst(self, count: int, *, since: int | None = None, until: int | None = None) -> list[EndRow]:
        """The requests that took longest from arrival to end, of those that ended in a period (microseconds)."""
        rows = self._all(
            "SELECT * FROM ends WHERE reason != ? AND at >= ? AND at <= ? ORDER BY e2e DESC LIMIT ?",
            (REFUSED, since if since is not None else -(2**62), until if until is not None else 2**62, count),
        )
        return [EndRow(*row) for row in rows]

    def ends_after(self, turn: int, request: int, count: int) -> list[EndRow]:
        """At most ``count`` of the ends that come after a request's in a turn, by turn and request."""
        rows = self._all(
            "SELECT * FROM ends WHERE turn >= ? AND (turn > ? OR request > ?) ORDER BY turn, request LIMIT ?",
            (turn, turn, request, count),
        )
        return [EndRow(*row) for row in rows]

    def same_prompt(self, digest: bytes, other_than: int) -> RequestRow | None:
        """The newest other request with the same prompt, among the last 20,000."""
        for row in self._connection.execute("SELECT * FROM requests ORDER BY request DESC LIMIT 20000"):
            request = RequestRow(*row)
            if request.request != other_than and request_detail_of(request).prompt_digest == digest:
                return request
        return None

    # --- now: who is in the engine, and the last moments. SQLite starts from the table before a CROSS JOIN, of which
    # few rows are wanted here; by itself it would read all requests in order.

    def live_requests(self) -> list[BriefRequest]:
        """The requests that are in the engine, in order of arrival."""
        try:
            sql = f"SELECT {_BRIEF} FROM live CROSS JOIN requests r USING (request) ORDER BY request"  # noqa: S608 - no values
            rows = self._all(sql)
        except sqlite3.OperationalError as error:
            raise LedgerReadError(f"{self.path} was recorded by an earlier version, without who is live") from error
        return [BriefRequest(*row) for row in rows]

    def brief_requests(self, numbers: Sequence[int]) -> list[BriefRequest]:
        """Some requests by their numbers, in order of arrival."""
        marks = ", ".join("?" * len(numbers))
        sql = f"SELECT {_BRIEF} FROM requests r WHERE request IN ({marks}) ORDER BY request"  # noqa: S608 - only marks
        return [BriefRequest(*row) for row in self._all(sql, numbers)]

    def live_events(self) -> list[EventRow]:
        """The events of the requests that are in the engine, by request and in order."""
        sql = "SELECT e.* FROM live CROSS JOIN events e USING (request) ORDER BY e.request, e.turn, e.place"
        return [EventRow(*row) for row in self._all(sql)]

    def ended_since(self, turn: int) -> list[tuple[BriefRequest, EndRow]]:
        """The requests that ended in or after a turn, refused ones included, in order of arrival."""
        ended = "ends n CROSS JOIN requests r USING (request) WHERE n.turn >= ?"
        sql = f"SELECT {_BRIEF}, n.* FROM {ended} ORDER BY +n.request"  # noqa: S608 - no values
        count = len(BriefRequest._fields)
        return [(BriefRequest(*row[:count]), EndRow(*row[count:])) for row in self._all(sql, (turn,))]

    def events_of_ended_since(self, turn: int) -> list[EventRow]:
        """The events of the requests that ran and ended in or after a turn, by request and in order."""
        sql = (
            "SELECT e.* FROM ends n CROSS JOIN events e USING (request) WHERE n.turn >= ? AND n.admitted IS NOT NULL "
            "ORDER BY e.request, e.turn, e.place"
        )
        return [EventRow(*row) for row in self._all(sql, (turn,))]

    def newest_turns(self, since: int) -> list[BriefTurn]:
        """The turns that ended at or after a time of the run, in order."""
        found = []
        sql = "SELECT turn, start, took, decode_rows, prefill_tokens, swapped, tokens FROM turns ORDER BY turn DESC"
        for row in self._connection.execute(sql):
            turn = BriefTurn(*row)
            if turn.end < since:
                break
            found.append(turn)
        return found[::-1]

    def turns_backwards(self, last: int, count: int) -> Iterator[TurnRow]:
        """At most ``count`` turns up to ``last``, newest first."""
        sql = "SELECT * FROM turns WHERE turn <= ? ORDER BY turn DESC LIMIT ?"
        return (TurnRow(*row) for row in self._connection.execute(sql, (last, count)))

    def turns_without_decodes(self, first: int, last: int) -> list[int]:
        """Those turns of a range that gave no running answer a token, in order."""
        sql = "SELECT turn FROM turns WHERE turn BETWEEN ? AND ? AND (decode_rows = 0 OR tokens = 0) ORDER BY turn"
        return [turn for (turn,) in self._all(sql, (first, last))]

    # --- turns

    def turn(self, number: int) -> TurnRow | None:
        rows = self._all("SELECT * FROM turns WHERE turn = ?", (number,))
        return TurnRow(*rows[0]) if rows else None

    def turns(self, first: int, last: int) -> list[TurnRow]:
        rows = self._all("SELECT * FROM turns WHERE turn BETWEEN ? AND ? ORDER BY turn", (first, last))
        return [TurnRow(*row) for row in rows]

    def times(self, turns: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Start and end of some turns."""
        marks = ", ".join("?" * len(turns))
        sql = f"SELECT turn, start, start + took FROM turns WHERE turn IN ({marks})"  # noqa: S608 - only marks
        return {turn: (start, end) for turn, start, end in self._all(sql, turns)}

    def bounds(self) -> tuple[int, int]:
        """The first and the last stored turn; (0, 0) for none."""
        # One at a time: SQLite looks up a single minimum or maximum, and reads the whole table for two.
        (first,), (last,) = self._all("SELECT min(turn) FROM turns") + self._all("SELECT max(turn) FROM turns")
        return first or 0, last or 0

    def heaviest_prefills(self, first: int, last: int, count: int = 20) -> list[TurnRow]:
        """The turns of a range in which prefill chunks took most."""
        rows = self._all(
            "SELECT * FROM turns WHERE turn BETWEEN ? AND ? AND prefill_time > 0 ORDER BY prefill_time DESC LIMIT ?",
            (first, last, count),
        )
        return [TurnRow(*row) for row in rows]

    def sums(self, first: int, last: int) -> StepSums:
        """Sums over the turns ``first`` to ``last``."""
        row = self._all(
            "SELECT count(*), coalesce(sum(took), 0), coalesce(sum(prefill_time), 0), coalesce(sum(CASE WHEN swapped > "
            "0 AND took > p90 THEN min(took - p90, took - prefill_time) ELSE 0 END), 0) FROM turns WHERE turn BETWEEN "
            "? AND ?",
            (first, last),
        )[0]
        return StepSums(*row)

    def controls(self, upto_turn: int) -> dict[str, ControlRow]:
        """The controls in force after a turn, by name."""
        rows = self._all("SELECT * FROM controls WHERE turn <= ? ORDER BY turn", (upto_turn,))
        return {row[2]: ControlRow(*row) for row in rows}

    def everything(self) -> Iterator[Rows]:
        """All turns in order with what a replay needs. Events are left out: they repeat the decisions by request."""
        requests = _by_turn(self._connection.execute("SELECT * FROM requests ORDER BY request"), 3)
        ends = _by_turn(self._connection.execute("SELECT * FROM ends ORDER BY turn, request"), 1)
        controls = _by_turn(self._connection.execute("SELECT * FROM controls ORDER BY turn"), 0)
        first, last = self.bounds()
        request, end, control = next(requests, None), next(ends, None), next(controls, None)
        for low in range(first, last + 1, _CHUNK):
            for turn in self.turns(low, low + _CHUNK - 1):
                rows = Rows(turn, [], [], [], [])
                if request is not None and request[0] == turn.turn:
                    rows.requests.extend(RequestRow(*row) for row in request[1])
                    request = next(requests, None)
                if end is not None and end[0] == turn.turn:
                    rows.ends.extend(EndRow(*row) for row in end[1])
                    end = next(ends, None)
                if control is not None and control[0] == turn.turn:
                    rows.controls.extend(ControlRow(*row) for row in control[1])
                    control = next(controls, None)
                yield rows


def _by_turn(rows: Iterator[Any], column: int) -> Iterator[tuple[int, list[Any]]]:
    for turn, group in groupby(rows, key=lambda row: row[column]):
        yield turn, list(group)


def run_named(folder: Path, run: str) -> Path:
    """The file of a run given by its id, the beginning of its id, its path, or ``last``."""
    if run == "last" and (found := runs_in(folder)):
        return found[0]
    path = Path(run)
    if path.is_file():
        return path
    matching = [path for path in runs_in(folder) if path.stem.startswith(run)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise LedgerReadError(f"{run!r} begins the names of {len(matching)} runs in {folder}; give more of it")
    raise LedgerReadError(f"no run {run!r} in {folder} (`ekiden replay --list` shows the recorded ones)")


def find_request(folder: Path, request_id: str) -> tuple[LedgerReader, list[RequestRow]]:
    """The newest run of a folder that knows a request, opened, and the requests with that id.

    Raises :class:`LedgerReadError` when no run does.
    """
    runs = runs_in(folder)
    for path in runs:
        reader = LedgerReader(path)
        rows = reader.requests_named(request_id)
        if rows:
            return reader, rows
        reader.close()
    raise LedgerReadError(
        f"no request {request_id!r} in {folder} ({len(runs)} recorded runs); the id is the one in the response's "
        "x-ekiden-request-id header, and requests before the ledger's retention are gone"
    )
