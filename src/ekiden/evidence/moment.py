"""What the ledger tells of a run as it stood at one moment, also a past one: the rows that signals are made of.

Rules: rows are found by index and their number is bounded (``MOST_TURNS``, ``MOST_REQUESTS``, ``MOST_ENDS``,
``SAMPLE``), so that a moment costs the same on a run of millions of turns; all of one moment is read in one snapshot;
nothing is kept between moments. A moment is what the newest turn left that had ended by then: turns are written when
they end, so a step that never ends shows only in how long that is ago.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from ekiden.evidence.reader import LedgerReader
from ekiden.guardrails.readings import Objectives, Windows
from ekiden.ledger.records import ENGINE_ENDED, REFUSED, EventKind
from ekiden.state.request import FinishReason, RefusalReason

MOST_TURNS: Final = 2_048
MOST_REQUESTS: Final = 2_048
"""Of those that ended in the near window, and of those that ended after a past moment and are looked at for who was in
the engine then."""
MOST_ENDS: Final = 8_192
"""Of the requests whose ends are counted over the long window."""
SAMPLE: Final = 256

CAPACITY: Final = frozenset(
    {
        RefusalReason.QUEUE_FULL_REQUESTS.value,
        RefusalReason.QUEUE_FULL_TOKENS.value,
        RefusalReason.QUEUE_TOO_SLOW.value,
        RefusalReason.INTERNAL_ERROR.value,
        RefusalReason.ENGINE_UNAVAILABLE.value,
    }
)
"""Refusals that are the server's doing. A tenant's own limit, a drain and a mistake of the client are not."""


class StepRow(NamedTuple):
    """Some columns of a turn. Microseconds."""

    turn: int
    start: int
    took: int
    waiting: int
    running: int
    free_blocks: int
    decode_rows: int
    decode_context: int
    prefill_tokens: int
    prefill_pairs: int
    p50: int
    swapped: int
    tokens: int
    new_sizes: int = 0

    @property
    def end(self) -> int:
        return self.start + self.took


class Asked(NamedTuple):
    """A request as it stood. Times are microseconds of the run; None for what had not happened by then.

    ``carried``: the tokens that it brought from an engine that had ended; if any, ``first`` is its arrival.
    """

    request: int
    tenant: str
    arrival: int
    prompt_tokens: int
    max_tokens: int
    refusal: str | None
    carried: int | None
    ended: int | None = None
    reason: str | None = None
    output_tokens: int = 0
    admitted: int | None = None
    first: int | None = None

    @property
    def live(self) -> bool:
        return self.ended is None

    @property
    def waiting(self) -> bool:
        return self.ended is None and self.admitted is None


class Settled(NamedTuple):
    """How many requests turned out good and bad."""

    good: int = 0
    bad: int = 0

    @property
    def all(self) -> int:
        return self.good + self.bad


class Moment(NamedTuple):
    """``at``: microseconds of the run. ``last``: the newest turn; None before the first. ``steps``: the turns of the
    near window, in order; ``before``: a sample of those of the run before it. ``requests``: those in the engine, and
    those that ended in the near window, in order of arrival. ``by_tenant`` and ``long`` count the ends of the short and
    the long window. ``padded``: whether rows of ended requests may be computed on."""

    at: int
    since: int
    last: StepRow | None
    steps: list[StepRow]
    before: list[StepRow]
    requests: list[Asked]
    by_tenant: dict[str, Settled]
    long: Settled
    padded: bool

    @property
    def with_first(self) -> list[Asked]:
        """Requests that got their first token in the near window, but for those from an engine that had ended."""
        return [a for a in self.requests if a.first is not None and a.first >= self.since and not a.carried]


def moment_of(reader: LedgerReader, at: float | None, objectives: Objectives, windows: Windows) -> Moment:
    """``at``: seconds since the run began; None: the end of the newest turn."""
    with reader.snapshot():
        return _read(_Rows(reader), at, objectives, windows)


def _read(rows: "_Rows", at: float | None, objectives: Objectives, windows: Windows) -> Moment:
    first, newest = rows.reader.bounds()
    last_end = rows.end_of(newest) if newest else 0
    now = last_end if at is None else round(at * 1e6)
    upto = newest if now >= last_end else rows.turn_by(now, first, newest)
    since = max(0, now - round(windows.near * 1e6))
    if upto < first or not newest:
        return Moment(now, since, None, [], [], [], {}, Settled(), padded=False)
    begin = max(rows.turn_by(since - 1, first, upto) + 1, upto - MOST_TURNS + 1)
    last = rows.steps((upto,))[0]
    short = rows.turn_by(now - round(windows.short * 1e6) - 1, first, upto) + 1
    long = rows.turn_by(now - round(windows.long * 1e6) - 1, first, upto) + 1
    requests = rows.requests(begin, upto, present=upto == newest)
    stride = max(1, (begin - first) // SAMPLE)
    return Moment(
        at=now,
        since=since,
        last=last,
        steps=rows.steps_between(begin, upto),
        before=rows.steps(range(begin - 1, first - 1, -stride)[:SAMPLE])[::-1],
        requests=requests,
        by_tenant=rows.settled_by_tenant(short, upto, objectives),
        long=rows.settled(long, upto, objectives),
        padded=rows.padded(),
    )


_ASKED: Final = "r.request, r.tenant, r.arrival, r.prompt_tokens, r.max_tokens, r.refusal, r.carried"
_CAPACITY: Final = ", ".join(f"'{reason}'" for reason in sorted(CAPACITY))
_GOOD: Final = (
    f"CASE WHEN reason = '{REFUSED}' THEN CASE WHEN refusal IN ({_CAPACITY}) THEN 0 END "
    f"WHEN reason = '{ENGINE_ENDED}' THEN NULL "
    f"WHEN reason IN ('{FinishReason.ERROR.value}', '{FinishReason.DEADLINE.value}') THEN 0 "
    "WHEN coalesce(first_token, at) - (at - e2e) > ? THEN 0 "
    f"WHEN reason = '{FinishReason.ABORT.value}' THEN NULL "
    "WHEN output_tokens > 1 AND (at - first_token) > ? * (output_tokens - 1) THEN 0 ELSE 1 END"
)
"""1 good, 0 bad, NULL not counted: what the client left, or what was refused by a limit of its own."""


class _Rows:
    """The SQL."""

    def __init__(self, reader: LedgerReader) -> None:
        self.reader, self._all = reader, reader.rows
        self._step = f"SELECT {reader.columns(StepRow, 'turns')} FROM turns"  # noqa: S608 - names of our own

    def end_of(self, turn: int) -> int:
        """The end of the first stored turn from this one on."""
        found: int = self._all("SELECT start + took FROM turns WHERE turn >= ? ORDER BY turn LIMIT 1", turn)[0][0]
        return found

    def turn_by(self, at: int, first: int, last: int) -> int:
        """The newest turn of a range that had ended by a time; ``first - 1`` for none. Turns end in order."""
        return first - 1 + bisect_right(range(first, last + 1), at, key=self.end_of)

    def steps(self, turns: Iterable[int]) -> list[StepRow]:
        """The stored ones of these turns, newest first."""
        numbers = list(turns)
        marks = ", ".join("?" * len(numbers))
        where = f"WHERE turn IN ({marks}) ORDER BY turn DESC"
        return [StepRow(*row) for row in self._all(f"{self._step} {where}", *numbers)]

    def steps_between(self, first: int, last: int) -> list[StepRow]:
        return [
            StepRow(*row) for row in self._all(f"{self._step} WHERE turn BETWEEN ? AND ? ORDER BY turn", first, last)
        ]

    def requests(self, begin: int, upto: int, *, present: bool) -> list[Asked]:
        """Those in the engine after turn ``upto``, and those that ended since turn ``begin``."""
        sql = (
            f"SELECT {_ASKED}, n.at, n.reason, n.output_tokens, n.admitted, n.first_token FROM ends n "  # noqa: S608
            "JOIN requests r ON r.request = n.request WHERE n.turn BETWEEN ? AND ? ORDER BY n.turn DESC LIMIT ?"
        )
        found = [Asked(*row) for row in self._all(sql, begin, upto, MOST_REQUESTS)]
        if present:
            numbers = [number for (number,) in self._all("SELECT request FROM live")]
            found += self._live(numbers)
        else:
            found += self._live_then(upto)
        return sorted(each._replace(first=each.arrival) if each.carried else each for each in found)

    def _live(self, numbers: list[int]) -> list[Asked]:
        """Requests without an end, with what had happened to them."""
        if not numbers:
            return []
        marks = ", ".join("?" * len(numbers))
        kinds = EventKind.ADMITTED.value, EventKind.FIRST_TOKEN.value
        sql = (
            "SELECT e.request, e.kind, t.start + e.late * t.took FROM events e JOIN turns t ON t.turn = e.turn "  # noqa: S608
            f"WHERE e.request IN ({marks}) AND e.kind IN {kinds}"
        )
        times = {(request, kind): at for request, kind, at in self._all(sql, *numbers)}
        rows = self._all(f"SELECT {_ASKED} FROM requests r WHERE r.request IN ({marks})", *numbers)  # noqa: S608
        admitted, first = ({number: at for (number, is_kind), at in times.items() if is_kind == kind} for kind in kinds)
        found = [Asked(*row) for row in rows]
        return [a._replace(admitted=admitted.get(a.request), first=first.get(a.request)) for a in found]

    def _live_then(self, upto: int) -> list[Asked]:
        """Those that were in the engine after a turn: of the arrivals until then those that are in it now, and those
        among the next ``MOST_REQUESTS`` ends."""
        ((newest,),) = self._all("SELECT coalesce(max(request), 0) FROM requests")
        sql = "SELECT turn FROM requests WHERE request >= ? ORDER BY request LIMIT 1"
        number = bisect_right(range(1, newest + 1), upto, key=lambda request: self._all(sql, request)[0][0])
        sql = (
            f"SELECT {_ASKED}, NULL, NULL, 0, n.admitted, n.first_token FROM "  # noqa: S608
            "(SELECT * FROM ends WHERE turn > ? ORDER BY turn LIMIT ?) n JOIN requests r ON r.request = n.request "
            "WHERE r.request <= ?"
        )
        found = [Asked(*row) for row in self._all(sql, upto, MOST_REQUESTS, number)]
        found += self._live([live for (live,) in self._all("SELECT request FROM live WHERE request <= ?", number)])
        then = self.end_of(upto)
        return [
            each._replace(
                admitted=None if each.admitted is None or each.admitted > then else each.admitted,
                first=None if each.first is None or each.first > then else each.first,
            )
            for each in found
        ]

    def settled_by_tenant(self, first: int, last: int, objectives: Objectives) -> dict[str, Settled]:
        sql = (
            f"SELECT tenant, sum(good = 1), sum(good = 0) FROM (SELECT r.tenant AS tenant, {_GOOD} AS good FROM ends n "  # noqa: S608
            "JOIN requests r ON r.request = n.request WHERE n.turn BETWEEN ? AND ? ORDER BY n.turn DESC LIMIT ?) "
            "WHERE good IS NOT NULL GROUP BY tenant"
        )
        found = self._all(sql, *_limits(objectives), first, last, MOST_ENDS)
        return {tenant: Settled(good, bad) for tenant, good, bad in found}

    def settled(self, first: int, last: int, objectives: Objectives) -> Settled:
        sql = (
            f"SELECT coalesce(sum(good = 1), 0), coalesce(sum(good = 0), 0) FROM (SELECT {_GOOD} AS good FROM ends n "  # noqa: S608
            f"LEFT JOIN requests r ON n.reason = '{REFUSED}' AND r.request = n.request WHERE n.turn BETWEEN ? AND ? "
            "ORDER BY n.turn DESC LIMIT ?)"
        )
        return Settled(*self._all(sql, *_limits(objectives), first, last, MOST_ENDS)[0])

    def padded(self) -> bool:
        """Whether the batching policy is one that computes ended rows, by the newest thousand changes."""
        sql = (
            "SELECT value FROM controls WHERE rowid > (SELECT coalesce(max(rowid), 0) - 1000 FROM controls) "
            "AND name = 'batching'"
        )
        values = [value for (value,) in self._all(sql)] or [str(self.reader.header.scheduler.get("batching"))]
        return any(value.endswith("padded") for value in values)


def _limits(objectives: Objectives) -> tuple[float, float]:
    return objectives.ttft_seconds * 1e6, objectives.tpot_seconds * 1e6
