"""The timelines of the requests of a run that is looked at again and again: each event is read once.

Events of a turn are written together and in the order of turns, so what a look has not seen is in later turns.
"""

from collections.abc import Iterable, Sequence

from ekiden.evidence.places import admitted_slots
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.timeline import Timeline
from ekiden.ledger.records import RequestRow


class Following:
    """What earlier looks have read. ``changed``: the numbers of the requests of which the newest one read something."""

    def __init__(self) -> None:
        self.changed: set[int] = set()
        self._timelines: dict[int, Timeline] = {}
        self._slots: dict[int, int] = {}
        self._turn = 0

    def update(self, reader: LedgerReader, requests: Iterable[RequestRow], turn: int) -> dict[int, Timeline]:
        """Read what is new of these requests, up to ``turn``, the newest; the others are let go of."""
        rows = {row.request: row for row in requests}
        old = [number for number in rows if number in self._timelines]
        new = [number for number in rows if number not in self._timelines]
        self._timelines = {number: self._timelines.get(number) or Timeline(row) for number, row in rows.items()}
        self._slots = {number: slot for number, slot in self._slots.items() if number in rows}
        self.changed = set(new)
        for numbers, since in ((old, self._turn), (new, 0)):
            for event in reader.events_after(numbers, since):
                self._timelines[event.request].take(event)
                self.changed.add(event.request)
        self._turn = turn
        return self._timelines

    def admitted_slots(self, reader: LedgerReader, holders: Sequence[Timeline]) -> dict[int, int]:
        """The slots that the admissions of these requests gave, by number."""
        unknown = [one for one in holders if one.number not in self._slots]
        self._slots |= admitted_slots(reader, unknown)
        return self._slots

    def slots_of(self, reader: LedgerReader, holders: Sequence[Timeline]) -> dict[int, int]:
        """The slots that these requests have now, or had last; one whose turn is no longer kept is left out."""
        given = self.admitted_slots(reader, [one for one in holders if one.slot is None])
        return {
            one.number: slot
            for one in holders
            if (slot := one.slot if one.slot is not None else given.get(one.number)) is not None
        }
