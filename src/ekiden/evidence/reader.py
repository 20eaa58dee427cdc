"""Asks stored runs. All SQL of the readers is here, but for the bounded rows that :mod:`ekiden.evidence.moment` makes
signals of.
"""

import heapq
import sqlite3
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from ekiden.evidence.ledger_file import LedgerFile
from ekiden.evidence.ledger_file import LedgerReadError as LedgerReadError  # what a reader raises
from ekiden.ledger.blobs import EndDetail, RequestDetail, TurnDecisions, TurnInputs
from ekiden.ledger.records import REFUSED, ControlRow, EndRow, EventKind, RequestRow, Rows, TurnRow

_AT_ONCE: Final = 500
"""Values in one statement."""
_LATE: Final = 60_000_000
"""Microseconds that may lie between a request's arrival and its being taken in."""

_turn_of = attrgetter("turn")
_DECODE_REQUEST = msgspec.msgpack.Decoder(RequestDetail).decode
_DECODE_END = msgspec.msgpack.Decoder(EndDetail).decode
_DECODE_DECISIONS = msgspec.msgpack.Decoder(TurnDecisions).decode
_DECODE_INPUTS = msgspec.msgpack.Decoder(TurnInputs).decode


def request_detail_of(row: RequestRow) -> RequestDetail:
    return _DECODE_REQUEST(row.detail)


def end_detail_of(row: EndRow) -> EndDetail:
    return _DECODE_END(row.detail)


def inputs_of(row: TurnRow) -> TurnInputs:
    return _DECODE_INPUTS(row.inputs)


def decisions_of(row: TurnRow) -> TurnDecisions:
    return _DECODE_DECISIONS(row.decisions)


class Event(NamedTuple):
    """What happened to a request at the start (``late`` 0) or the end (1) of a turn. ``value`` depends on the kind."""

    request: int
    turn: int
    late: int
    kind: EventKind
    value: int
    at: int | None
    """Microseconds of the run; None where the turn is no longer kept."""


class History(NamedTuple):
    """The turns from which on a control had these values."""

    turns: list[int]
    values: list[str]

    def at(self, turn: int) -> str:
        return self.values[bisect_right(self.turns, turn) - 1]


class LedgerReader(LedgerFile):
    """One stored run, and what is asked of it: requests and their events, turns, controls."""

    def _events(self, where: str, *values: object) -> Iterator[Event]:
        """Events by request, each request's in the order in which they happened."""
        sql = (
            "SELECT e.request, e.turn, e.late, e.kind, e.value, t.start + e.late * t.took FROM events e "  # noqa: S608 - conditions of our own
            f"LEFT JOIN turns t ON t.turn = e.turn {where} ORDER BY e.request, e.turn, e.place"
        )
        for request, turn, late, kind, value, at in self._connection.execute(sql, values):
            yield Event(request, turn, late, EventKind(kind), value, at)

    # --- requests

    def requests_named(self, request_id: str) -> list[RequestRow]:
        """Every request with this id, newest first; for a call of several answers all of them (``id-0``, ``id-1``)."""
        rows = self._rows(RequestRow, "WHERE request_id = ? ORDER BY request DESC", request_id)
        if rows:
            return rows
        low, high = f"{request_id}-0", f"{request_id}-:"  # ':' follows '9'
        return self._rows(RequestRow, "WHERE request_id >= ? AND request_id < ? ORDER BY request", low, high)

    def request(self, number: int) -> RequestRow | None:
        return self._one(RequestRow, "WHERE request = ?", number)

    def requests_numbered(self, numbers: Sequence[int]) -> list[RequestRow]:
        """Some requests in order of arrival, without details."""
        marks = ", ".join("?" * len(numbers))
        return self._rows(RequestRow, f"WHERE request IN ({marks}) ORDER BY request", *numbers, blobs=False)

    def requests_after(self, number: int, count: int) -> list[RequestRow]:
        """At most ``count`` requests that came after one, in order, with their details."""
        return self._rows(RequestRow, "WHERE request > ? ORDER BY request LIMIT ?", number, count)

    def requests_newest(self) -> int:
        """The highest number of a request; 0 for none."""
        newest: int = self._all("SELECT coalesce(max(request), 0) FROM requests")[0][0]
        return newest

    def requests_arrived(self, since: int, until: int) -> list[RequestRow]:
        """The requests that arrived from a time of the run on, and before another, in order of their numbers."""
        # They are numbered as intake saw them, at most ``_LATE`` after they arrived: the first is searched for.
        first = 1 + bisect_left(range(1, self.requests_newest() + 1), since - _LATE, key=self._arrival_from)
        found = self._iterate(RequestRow, "WHERE request >= ? ORDER BY request", first)
        upto = takewhile(lambda row: row.arrival < until + _LATE, found)
        return [row for row in upto if since <= row.arrival < until]

    def _arrival_from(self, number: int) -> int:
        """When the first stored request of a number or more arrived."""
        arrival: int = self._all("SELECT arrival FROM requests WHERE request >= ? ORDER BY request LIMIT 1", number)[0][
            0
        ]
        return arrival

    def end(self, number: int) -> EndRow | None:
        return self._one(EndRow, "WHERE request = ?", number)

    def events(self, number: int) -> list[Event]:
        return list(self._events("WHERE e.request = ?", number))

    def events_after(self, numbers: Sequence[int], turn: int) -> Iterator[Event]:
        """The events of some requests in the turns after one, each request's in the order in which they happened."""
        for place in range(0, len(numbers), _AT_ONCE):
            some = numbers[place : place + _AT_ONCE]
            yield from self._events(f"WHERE e.request IN ({', '.join('?' * len(some))}) AND e.turn > ?", *some, turn)

    def later_admitted(self, number: int, upto_turn: int) -> list[tuple[int, int, int]]:
        """Those that arrived after ``number`` and were admitted up to a turn: request, admission's and end's turn."""
        # Numbers and turns of arrival grow together, so the highest number given out up to a turn is searched for.
        ((newest,),) = self._all("SELECT coalesce(max(request), 0) FROM requests")
        sql = "SELECT turn FROM requests WHERE request >= ? ORDER BY request LIMIT 1"
        last = bisect_right(range(1, newest + 1), upto_turn, key=lambda request: self._all(sql, request)[0][0])
        return self._all(
            "SELECT e.request, e.turn, coalesce(n.turn, ?) FROM events e LEFT JOIN ends n ON n.request = e.request "
            "WHERE e.request > ? AND e.request <= ? AND e.kind = ? AND e.turn <= ? ORDER BY e.turn",
            *(2**62, number, last, EventKind.ADMITTED, upto_turn),
        )

    def all_requests(self) -> list[RequestRow]:
        return self._rows(RequestRow, "ORDER BY request")

    def all_ends(self) -> list[EndRow]:
        return self._rows(EndRow, "ORDER BY request")

    def all_events(self) -> Iterator[Event]:
        return self._events("")

    def worst(self, count: int, since: int) -> list[EndRow]:
        """The requests that took longest from arrival to end, of those that ended at or after a time of the run."""
        return self._rows(EndRow, "WHERE reason != ? AND at >= ? ORDER BY e2e DESC LIMIT ?", REFUSED, since, count)

    def ends_after(self, turn: int, request: int, count: int) -> list[EndRow]:
        """At most ``count`` of the ends that come after a request's in a turn, by turn and request."""
        where = "WHERE turn >= ? AND (turn > ? OR request > ?) ORDER BY turn, request LIMIT ?"
        return self._rows(EndRow, where, turn, turn, request, count)

    def same_prompt(self, digest: bytes, other_than: int) -> RequestRow | None:
        """The newest other request with the same prompt, among the last 20,000."""
        newest_first = self._iterate(RequestRow, "ORDER BY request DESC LIMIT 20000")
        others = (row for row in newest_first if row.request != other_than)
        return next((row for row in others if request_detail_of(row).prompt_digest == digest), None)

    # --- now: the requests in the engine, and the last moments

    def live_requests(self) -> list[RequestRow]:
        """The requests that are in the engine, in order of arrival, without details."""
        try:
            where = "WHERE request IN (SELECT request FROM live) ORDER BY request"
            return self._rows(RequestRow, where, blobs=False)
        except sqlite3.OperationalError as error:
            raise LedgerReadError(f"{self.path} was recorded by an earlier version, without who is live") from error

    def ended_since(self, turn: int) -> list[tuple[RequestRow, EndRow]]:
        """The requests that ended in or after a turn, refused ones included, in order of arrival, without details."""
        ended = "WHERE request IN (SELECT request FROM ends WHERE turn >= ?) ORDER BY request"
        requests = {row.request: row for row in self._iterate(RequestRow, ended, turn, blobs=False)}
        ends = self._iterate(EndRow, ended, turn, blobs=False)
        return [(requests[end.request], end) for end in ends if end.request in requests]

    def newest_turns(self, since: int) -> list[TurnRow]:
        """The turns that ended at or after a time of the run, in order, without inputs and decisions."""
        newest_first = self._iterate(TurnRow, "ORDER BY turn DESC", blobs=False)
        return list(takewhile(lambda turn: turn.end >= since, newest_first))[::-1]

    def turns_backwards(self, last: int, count: int) -> Iterator[TurnRow]:
        """At most ``count`` turns up to ``last``, newest first."""
        return self._iterate(TurnRow, "WHERE turn <= ? ORDER BY turn DESC LIMIT ?", last, count)

    def silent_turns(self, first: int, last: int) -> list[int]:
        """Those turns of a range that gave no running answer a token, in order."""
        sql = "SELECT turn FROM turns WHERE turn BETWEEN ? AND ? AND (decode_rows = 0 OR tokens = 0) ORDER BY turn"
        return [turn for (turn,) in self._all(sql, first, last)]

    # --- turns

    def turn(self, number: int) -> TurnRow | None:
        return self._one(TurnRow, "WHERE turn = ?", number)

    def turns(self, first: int, last: int) -> list[TurnRow]:
        """The stored turns of a range, without inputs and decisions."""
        return self._rows(TurnRow, "WHERE turn BETWEEN ? AND ? ORDER BY turn", first, last, blobs=False)

    def turns_with_decisions(self, first: int, last: int) -> Iterator[TurnRow]:
        """The stored turns of a range, with inputs and decisions."""
        return self._iterate(TurnRow, "WHERE turn BETWEEN ? AND ? ORDER BY turn", first, last)

    def all_turns(self) -> Iterator[TurnRow]:
        return self._iterate(TurnRow, "ORDER BY turn")

    def bounds(self) -> tuple[int, int]:
        """The first and the last stored turn; (0, 0) for none."""
        # One at a time: SQLite looks up a single minimum or maximum, and reads the whole table for two.
        (first,), (last,) = self._all("SELECT min(turn) FROM turns") + self._all("SELECT max(turn) FROM turns")
        return first or 0, last or 0

    def heaviest_prefills(self, first: int, last: int, count: int = 20) -> list[TurnRow]:
        """The turns of a range in which prefill chunks took most."""
        where = "WHERE turn BETWEEN ? AND ? AND prefill_time > 0 ORDER BY prefill_time DESC LIMIT ?"
        return self._rows(TurnRow, where, first, last, count)

    def sums(self, first: int, last: int) -> tuple[int, int, int, int]:
        """Over a range of turns: their number, and in microseconds their time, the part owed to prefill chunks and the
        part owed to swaps."""
        sql = (
            "SELECT count(*), coalesce(sum(took), 0), coalesce(sum(prefill_time), 0), coalesce(sum(CASE WHEN swapped > "
            "0 AND took > p90 THEN min(took - p90, took - prefill_time) ELSE 0 END), 0) FROM turns WHERE turn BETWEEN "
            "? AND ?"
        )
        turns, took, prefill, swapping = self._all(sql, first, last)[0]
        return turns, took, prefill, swapping

    def controls(self, upto_turn: int) -> dict[str, ControlRow]:
        """The controls in force after a turn, by name."""
        return {row.name: row for row in self._iterate(ControlRow, "WHERE turn <= ? ORDER BY turn, rowid", upto_turn)}

    def history(self, name: str) -> History:
        """The values that a control had over the run."""
        header = self.header
        first = header.scheduler.get(name, header.limits.get(name))
        rows = self.controls_named(name)
        return History([0, *(row.turn for row in rows)], [str(first), *(row.value for row in rows)])

    def controls_between(self, since: int, until: int) -> list[ControlRow]:
        """What was set from a time of the run on, and before another, in order."""
        return self._rows(ControlRow, "WHERE at >= ? AND at < ? ORDER BY turn, rowid", since, until)

    def controls_named(self, name: str) -> list[ControlRow]:
        """All values that one control was given, in order."""
        return self._rows(ControlRow, "WHERE name = ? ORDER BY turn, rowid", name)

    def all_controls(self) -> list[ControlRow]:
        return self._rows(ControlRow, "ORDER BY turn")

    def everything(self) -> Iterator[Rows]:
        """All turns in order with what a replay needs. Events are left out: they repeat the decisions by request."""
        rows = heapq.merge(
            self.all_turns(),
            self._iterate(RequestRow, "ORDER BY request"),
            self._iterate(EndRow, "ORDER BY turn, request"),
            self._iterate(ControlRow, "ORDER BY turn"),
            key=_turn_of,
        )
        for _, of_turn in groupby(rows, key=_turn_of):
            found: defaultdict[type, list[Any]] = defaultdict(list)
            for row in of_turn:
                found[type(row)].append(row)
            for turn in found[TurnRow]:  # none where it was lost
                yield Rows(turn, [], found[RequestRow], found[EndRow], found[ControlRow])
