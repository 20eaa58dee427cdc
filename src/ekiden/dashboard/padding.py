"""How long the rows of ended requests are computed on, where the batching policy does that: until their batch ends.

A batch has ended when nothing runs any more, or when another request is let in.
"""

from bisect import bisect_left
from collections.abc import Iterable

from ekiden.evidence.period_rows import PeriodRows
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.timeline import Timeline
from ekiden.ledger.records import EndRow


class Padding:
    """``timelines``: the requests of the time that is looked at."""

    def __init__(self, reader: LedgerReader, rows: PeriodRows, timelines: Iterable[Timeline]) -> None:
        self._rows = rows
        self._policies = reader.history("batching")
        self.known = any(policy.endswith("padded") for policy in self._policies.values)
        """Whether there may be any."""
        admitted = (one.admitted.at for one in timelines if one.admitted is not None) if self.known else ()
        self._admitted = sorted(at for at in admitted if at is not None)

    def until(self, end: EndRow) -> int | None:
        """When the row of a request that has ended is computed no more, in microseconds of the run: its end itself
        where it was never computed on, and None while it is."""
        if not self.known or not self._policies.at(end.turn).endswith("padded"):
            return end.at
        return self.batch_end(end.turn, end.at)

    def batch_end(self, turn: int, at: int) -> int | None:
        """When the batch ended that was computed in a turn, and went on at a time."""
        place = bisect_left(self._admitted, at)
        joined = self._admitted[place] if place < len(self._admitted) else None
        drained = self._rows.drained(turn)
        return min((each for each in (joined, drained) if each is not None), default=None)
