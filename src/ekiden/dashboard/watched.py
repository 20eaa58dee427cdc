"""One run, looked at again and again: its view, and the bars and points that changed since any earlier look.

Each look is numbered. A bar or a point keeps the number of the look that found it new or changed, and the turn that was
the newest then, so that a browser that comes back with the turn it has seen gets what it missed. What is older than
:data:`HISTORY_SECONDS` is let go of; a browser that lacks more than that starts anew.
"""

from collections import deque
from math import inf
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from ekiden.dashboard.bars import all_bars
from ekiden.dashboard.padding import Padding
from ekiden.dashboard.part import curves, read_part
from ekiden.dashboard.series import points, tenants_tokens
from ekiden.dashboard.shapes import Bar, Point, Segment
from ekiden.evidence.following import Following
from ekiden.evidence.live import WINDOW_SECONDS, Look, look
from ekiden.evidence.live_view import LiveView
from ekiden.evidence.period_rows import PeriodRows, StepOf
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.timeline import Moment

HISTORY_SECONDS: Final = 120
MOST_BARS: Final = 2_000
POINT_MICROS: Final = 1_000_000
_LAG: Final = 500_000
"""The writer is up to a fifth of a second behind the engine: a point waits a little for its last turns."""
_FRESH: Final = round((WINDOW_SECONDS - 3.0) * 1e6)
"""After a longer time than this the last window does not hold all that happened since."""


Value = TypeVar("Value")


class Kept(NamedTuple, Generic[Value]):
    """A bar or a point with the look and the turn at which it was found."""

    look: int
    turn: int
    value: Value


class News(NamedTuple):
    """What one reading found. ``at``: microseconds of the run."""

    view: LiveView
    at: int
    bars: list[Bar]
    points: list[Point]


class Watched:
    """One run. :meth:`read` reads its file, for one thread; the rest is quick."""

    def __init__(self, path: Path) -> None:
        self.reader = LedgerReader(path)
        self.path = path
        self.header = self.reader.header
        self.let_go = 0
        """The newest turn at which something was found that is no longer kept."""
        self._bars: dict[str, Kept[Bar]] = {}
        self._points: deque[Kept[Point]] = deque()
        self._known = Following()
        self._pointed = 0
        """Microseconds of the run up to which there are points."""
        self._seen: int | None = None
        self._closed = False

    def close(self) -> None:
        """Let go of the file; the next reading opens it again."""
        self._closed = True
        self.reader.close()

    def read(self, now: float | None) -> News:
        """Read what is new. ``now`` is of the engine's clock, in seconds; it does not jump when the date is changed.
        None: as of the newest turn. Raises :class:`LedgerReadError` and sqlite3.Error."""
        if self._closed:
            self.reader, self._closed = LedgerReader(self.path), False
        date = None if now is None else self.header.started + now - self.header.clock_base / 1e6
        found = look(self.reader, now=date, known=self._known)
        bars: list[Bar] = []
        made: list[Point] = []
        if self._seen is None or found.now - self._seen > _FRESH:
            bars, made = self._last_minutes(found.now)
        newer, more = self._newest(found)
        self._seen = found.now
        return News(found.view, found.now, [*bars, *newer], [*made, *more])

    def keep(self, number: int, news: News) -> None:
        """Take in what was read as the look of this number, and let go of what is old."""
        turn = news.view.turn
        for bar in news.bars:
            there = self._bars.get(bar.id)
            if there is None or there.value != bar:
                self._bars[bar.id] = Kept(number, turn, bar)
        self._points.extend(Kept(number, turn, point) for point in news.points)
        self._forget(news.at)

    def since(self, number: int) -> tuple[list[Bar], list[Point]]:
        """What was found after a look; all for a negative one."""
        bars = [kept.value for kept in self._bars.values() if kept.look > number]
        return bars, [kept.value for kept in self._points if kept.look > number]

    def since_turn(self, turn: int) -> tuple[list[Bar], list[Point]] | None:
        """What was found after a turn; None where some of that is no longer kept. Points of the turn itself come again,
        as time passes without turns."""
        if turn < self.let_go:
            return None
        bars = [kept.value for kept in self._bars.values() if kept.turn > turn]
        return bars, [kept.value for kept in self._points if kept.turn >= turn]

    # --- what is read

    def _last_minutes(self, now: int) -> tuple[list[Bar], list[Point]]:
        """What nobody has watched."""
        since = max(0, now - HISTORY_SECONDS * 1_000_000)
        self._pointed = max(self._pointed, -(-since // POINT_MICROS) * POINT_MICROS)
        count = max(0, (now - _LAG - self._pointed) // POINT_MICROS)
        with self.reader.snapshot():
            part = read_part(self.reader, since, now, most=MOST_BARS)
            made = curves(part, self.reader, self._pointed, POINT_MICROS, count) if count else []
        self._pointed += count * POINT_MICROS
        return part.bars, made

    def _newest(self, found: Look) -> tuple[list[Bar], list[Point]]:
        requests = [*found.live, *found.gone]
        changed = [one for one in requests if one.number in self._known.changed]
        slots = self._known.admitted_slots(self.reader, changed)
        rows = PeriodRows(self.reader)
        now = Moment(found.view.turn, 1, found.turns[-1].end if found.turns else found.now)
        padding = Padding(self.reader, rows, requests)
        bars = all_bars(changed, slots, found.ends, now, padding)
        if padding.known:
            bars += self._batches_ended(rows, padding, {bar.id for bar in bars})
        return bars, self._new_points(found)

    def _batches_ended(self, rows: PeriodRows, padding: Padding, newer: set[str]) -> list[Bar]:
        """Rows that were computed on until their batch ended, when their requests' ends were out of the window."""
        found = []
        for kept in self._bars.values():
            bar = kept.value
            phase, begin, _ = bar.segments[-1]
            if bar.end is None and phase == "padding" and bar.id not in newer:
                since = round(begin * 1e6)
                end = padding.batch_end(rows.turn_by(since), since)
                if end is not None:
                    segments: list[Segment] = [*bar.segments[:-1], (phase, begin, end / 1e6)]
                    found.append(msgspec.structs.replace(bar, segments=segments, end=end / 1e6))
        return found

    def _new_points(self, found: Look) -> list[Point]:
        count = max(0, (found.now - _LAG - self._pointed) // POINT_MICROS)
        if not count:
            return []
        since, until = self._pointed, self._pointed + count * POINT_MICROS
        pairs = zip([None, *found.turns], found.turns, strict=False)
        steps = [StepOf.of(row, before) for before, row in pairs]
        earlier = [step for step in steps if step.end <= since]
        own = [step for step in steps if since < step.end <= until]
        requests = [*found.live, *found.gone]
        firsts = [
            (one.first_token.at, one.first_token.at - one.request.arrival)
            for one in requests
            if one.first_token is not None and one.first_token.at is not None
        ]
        before = earlier[-1] if earlier else self._last_step(found.view.turn) if not own else None
        made = points(
            own,
            firsts,
            since=since,
            width=POINT_MICROS,
            count=count,
            blocks=self.header.num_blocks,
            before=before,
            tenants=tenants_tokens(requests, own, since=since, width=POINT_MICROS, count=count),
        )
        self._pointed = until
        return made

    def _last_step(self, turn: int) -> StepOf | None:
        row = self.reader.turn(turn)
        return None if row is None else StepOf.of(row, None)

    # --- what is kept

    def _forget(self, now: int) -> None:
        oldest = now / 1e6 - HISTORY_SECONDS
        gone = [name for name, kept in self._bars.items() if kept.value.end is not None and kept.value.end < oldest]
        for name in gone or self._too_many():
            self.let_go = max(self.let_go, self._bars.pop(name).turn)
        while self._points and self._points[0].value.t < oldest:
            self.let_go = max(self.let_go, self._points.popleft().turn)

    def _too_many(self) -> list[str]:
        """The bars that ended first, beyond :data:`MOST_BARS`."""
        count = len(self._bars) - MOST_BARS
        if count <= 0:
            return []
        ends = sorted((inf if kept.value.end is None else kept.value.end, name) for name, kept in self._bars.items())
        return [name for _, name in ends[:count]]
