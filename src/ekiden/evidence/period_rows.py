"""The rows of a part of a run, bounded: what a chart of it is drawn from.

Rows are looked up by index from the first turn of the part on, and of a long part no more are read than a chart could
show: turns in strides, and the newest of the requests.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from ekiden.evidence.reader import LedgerReader
from ekiden.ledger.records import REFUSED, EndRow, RequestRow, TurnRow

MOST_STEPS: Final = 12_000
"""Turns that are read of a part; of a longer one every second, third and so on."""
MOST_ENDS: Final = 100_000
_AT_ONCE: Final = 500
"""Values in one statement."""


class StepOf(NamedTuple):
    """One turn. ``gap``: from the end of the turn before to its own; None where that is not stored. Microseconds."""

    turn: int
    end: int
    took: int
    gap: int | None
    decode_rows: int
    tokens: int
    prefill_tokens: int
    running: int
    waiting: int
    free_blocks: int
    p50: int
    p90: int

    @classmethod
    def of(cls, row: TurnRow, before: TurnRow | None) -> "StepOf":
        gap = row.end - before.end if before is not None and before.turn == row.turn - 1 else None
        return cls(
            row.turn, row.end, row.took, gap, row.decode_rows, row.tokens, row.prefill_tokens, row.running,
            row.waiting, row.free_blocks, row.p50, row.p90,
        )  # fmt: skip


class EndFigures(NamedTuple):
    """Of one request, in microseconds of the run."""

    arrival: int
    at: int
    admitted: int | None
    first_token: int | None
    output_tokens: int
    reason: str


class PeriodRows:
    """Reads one run. Call it inside a snapshot, so that all is of one moment."""

    def __init__(self, reader: LedgerReader) -> None:
        self._reader, self._all = reader, reader.rows
        self.first, self.last = reader.bounds()

    def end_of(self, turn: int) -> int:
        """The end of the first stored turn from this one on; of the last one after it."""
        rows = self._all("SELECT start + took FROM turns WHERE turn >= ? ORDER BY turn LIMIT 1", turn)
        rows = rows or self._all("SELECT start + took FROM turns ORDER BY turn DESC LIMIT 1")
        return int(rows[0][0]) if rows else 0

    def start_of(self, turn: int) -> int:
        rows = self._all("SELECT start FROM turns WHERE turn >= ? ORDER BY turn LIMIT 1", turn)
        return int(rows[0][0]) if rows else 0

    def turn_by(self, at: int) -> int:
        """The newest turn that had ended by a time; ``first - 1`` for none."""
        return self.first - 1 + bisect_right(range(self.first, self.last + 1), at, key=self.end_of)

    def turns_of(self, since: int, until: int) -> tuple[int, int]:
        """The first and the last turn that ended in ``(since, until]``; the last is below the first where none did."""
        if not self.last:
            return 1, 0
        return max(self.first, self.turn_by(since) + 1), self.turn_by(until)

    def steps(self, first: int, last: int) -> tuple[list[StepOf], int]:
        """The turns of a range in order, and the stride in which they were read."""
        stride = max(1, -(-(last - first + 1) // MOST_STEPS))
        if stride == 1:
            rows = self._reader.turns(first - 1, last)
            pairs = zip([None, *rows], rows, strict=False)
            return [StepOf.of(row, before) for before, row in pairs if row.turn >= first], 1
        sql = (
            "SELECT t.turn, t.start + t.took, t.took, t.start + t.took - b.start - b.took, t.decode_rows, t.tokens, "
            "t.prefill_tokens, t.running, t.waiting, t.free_blocks, t.p50, t.p90 FROM turns t LEFT JOIN turns b ON "
            "b.turn = t.turn - 1 WHERE t.turn BETWEEN ? AND ? AND (t.turn - ?) % ? = 0 ORDER BY t.turn"
        )
        return [StepOf(*row) for row in self._all(sql, first, last, first, stride)], stride

    def sums(self, first: int, last: int, since: int, width: int) -> dict[int, tuple[int, int, int]]:
        """How many turns, output tokens and computed prompt tokens fall into each bin of ``width`` microseconds after
        ``since``, by the bin's number from 0."""
        sql = (
            "SELECT (start + took - ? - 1) / ?, count(*), sum(tokens), sum(prefill_tokens) FROM turns "
            "WHERE turn BETWEEN ? AND ? GROUP BY 1"
        )
        return {bin: (turns, out, prompt) for bin, turns, out, prompt in self._all(sql, since, width, first, last)}

    def requests(self, first: int, last: int, most: int) -> tuple[list[RequestRow], bool]:
        """The requests that were in the engine at some time of a range of turns, in order of arrival, without details;
        at most ``most``, the newest. The second value: whether these are all."""
        newest = self.numbered_until(last)
        ended = self._all(
            "SELECT request FROM ends WHERE turn >= ? AND request <= ? AND reason != ? ORDER BY turn DESC LIMIT ?",
            *(first, newest, REFUSED, most + 1),
        )
        live = self._all("SELECT request FROM live WHERE request <= ? ORDER BY request DESC LIMIT ?", newest, most + 1)
        found = sorted({number for (number,) in (*ended, *live)})
        return self._requests(found[-most:]), len(found) <= most

    def numbered_until(self, turn: int) -> int:
        """The highest number of a request that a turn up to this one took in."""
        newest = self._reader.requests_newest()
        sql = "SELECT turn FROM requests WHERE request >= ? ORDER BY request LIMIT 1"
        return bisect_right(range(1, newest + 1), turn, key=lambda number: self._all(sql, number)[0][0])

    def _requests(self, numbers: Sequence[int]) -> list[RequestRow]:
        found: list[RequestRow] = []
        for place in range(0, len(numbers), _AT_ONCE):
            found += self._reader.requests_numbered(numbers[place : place + _AT_ONCE])
        return found

    def ends(self, numbers: Sequence[int]) -> dict[int, EndRow]:
        """The ends of some requests by their numbers, without details."""
        found: dict[int, EndRow] = {}
        columns = ", ".join(name if name != "detail" else "x''" for name in EndRow._fields)
        for place in range(0, len(numbers), _AT_ONCE):
            some = numbers[place : place + _AT_ONCE]
            sql = f"SELECT {columns} FROM ends WHERE request IN ({', '.join('?' * len(some))})"  # noqa: S608
            found |= {row[0]: EndRow(*row) for row in self._all(sql, *some)}
        return found

    def first_tokens(self, first: int, since: int, until: int, most: int) -> list[tuple[int, int]]:
        """Of ended requests: the time of the first token, and how long it took, for those in ``(since, until]``."""
        sql = (
            "SELECT first_token, first_token - (at - e2e) FROM ends WHERE turn >= ? AND first_token > ? AND "
            "first_token <= ? ORDER BY turn LIMIT ?"
        )
        return [(at, took) for at, took in self._all(sql, first, since, until, most)]

    def figures(self, first: int, last: int) -> list[EndFigures]:
        """The ends of a range of turns, at most :data:`MOST_ENDS` of them, the newest."""
        sql = (
            "SELECT at - e2e, at, admitted, first_token, output_tokens, reason FROM ends WHERE turn BETWEEN ? AND ? "
            "ORDER BY turn DESC LIMIT ?"
        )
        return [EndFigures(*row) for row in self._all(sql, first, last, MOST_ENDS)]

    def first_arrival(self) -> int:
        """When the first request that is kept arrived; 0 for none."""
        found: int = self._all("SELECT coalesce(min(arrival), 0) FROM requests")[0][0]
        return found

    def tenants_of_ended(self, first: int, last: int, since: int, width: int) -> dict[int, dict[str, float]]:
        """Prompt and output tokens of the requests that ended in a range of turns, by tenant and by the number of the
        bin of ``width`` microseconds after ``since`` in which they ended."""
        sql = (
            "SELECT (n.at - ? - 1) / ?, r.tenant, sum(r.prompt_tokens - n.cached_tokens + n.output_tokens) FROM ends n "
            "JOIN requests r ON r.request = n.request WHERE n.turn BETWEEN ? AND ? AND n.reason != ? GROUP BY 1, 2"
        )
        found: dict[int, dict[str, float]] = {}
        for bin, tenant, tokens in self._all(sql, since, width, first, last, REFUSED):
            found.setdefault(bin, {})[tenant] = float(tokens)
        return found

    def drained(self, turn: int) -> int | None:
        """When the first turn from this one on that left nothing running ended; None where none has."""
        sql = "SELECT start + took FROM turns WHERE turn >= ? AND running = 0 ORDER BY turn LIMIT 1"
        rows = self._all(sql, turn)
        return int(rows[0][0]) if rows else None

    def gaps(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Where turns were lost in a range: the end of the turn before, the start of the one after, and how many."""
        stored = self._all("SELECT count(*) FROM turns WHERE turn BETWEEN ? AND ?", first, last)[0][0]
        if stored == last - first + 1:
            return []
        sql = (
            "SELECT b.start + b.took, a.start, a.turn - b.turn - 1 FROM turns a JOIN turns b ON b.turn = (SELECT "
            "max(turn) FROM turns WHERE turn < a.turn) WHERE a.turn BETWEEN ? AND ? AND a.turn > b.turn + 1 LIMIT 100"
        )
        return [(begin, end, count) for begin, end, count in self._all(sql, first, last)]
