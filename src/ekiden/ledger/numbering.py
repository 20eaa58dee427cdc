"""The numbers of requests, and the events of the turn that is being recorded: what all parts of the recorder share."""

from dataclasses import dataclass, field

from ekiden.ledger.records import EventKind, EventRow
from ekiden.state.sequence import Sequence


@dataclass(slots=True)
class Numbering:
    """Requests are numbered as they arrive, refused ones included. A number is kept until its request is no longer
    computed."""

    of: dict[Sequence, int] = field(default_factory=dict)
    live: dict[str, Sequence] = field(default_factory=dict)
    """Those that have not ended, by their ids."""
    _given: int = 0
    _padded: list[Sequence] = field(default_factory=list)
    """Finished rows that go on as padding."""

    def arrived(self, sequence: Sequence | None) -> int:
        """The number of a new request; None for a refused one, which has no sequence."""
        self._given += 1
        if sequence is not None:
            self.of[sequence], self.live[sequence.request_id] = self._given, sequence
        return self._given

    def ended(self, sequence: Sequence) -> None:
        """A request that is no longer live needs its number only while it is computed as padding."""
        if sequence.padding:
            self._padded.append(sequence)
        else:
            del self.of[sequence]

    def end_turn(self) -> None:
        """Forget the finished rows that are no longer computed."""
        for sequence in self._padded:
            if sequence.slot is None:
                del self.of[sequence]
        self._padded = [sequence for sequence in self._padded if sequence.slot is not None]


@dataclass(slots=True)
class Events:
    """What happened to requests in one turn, in order."""

    turn: int = 0
    rows: list[EventRow] = field(default_factory=list)

    def begin(self, turn: int) -> None:
        self.turn, self.rows = turn, []

    def add(self, number: int, kind: EventKind, value: int = 0, *, late: int = 0) -> None:
        """``late`` 0: it happened at the turn's start; 1: at its end."""
        self.rows.append(EventRow(number, self.turn, len(self.rows), late, kind.value, value))
