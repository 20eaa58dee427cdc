"""Which slots requests have had. An admission's slot is in the decisions of its turn, a return's in its event."""

from collections.abc import Iterable, Sequence

from ekiden.evidence.reader import LedgerReader, decisions_of
from ekiden.evidence.timeline import Timeline


def slots_of(reader: LedgerReader, holders: Sequence[Timeline]) -> dict[int, int]:
    """The slots that requests have now, or had last, by their numbers: where they came back to, or what their
    admissions gave them. One whose turn is no longer kept is left out."""
    found = {one.number: one.slot for one in holders if one.slot is not None}
    return found | admitted_slots(reader, (one for one in holders if one.slot is None))


def admitted_slots(reader: LedgerReader, holders: Iterable[Timeline]) -> dict[int, int]:
    """The slots that admissions gave, by the numbers of the requests."""
    wanted = {one.number: one.admitted.turn for one in holders if one.admitted is not None}
    found: dict[int, int] = {}
    for turn in set(wanted.values()):
        row = reader.turn(turn)
        if row is not None:
            decisions = decisions_of(row)
            given = (*decisions.admitted_start, *decisions.admitted)
            found |= {number: slot for number, slot, *_ in given if wanted.get(number) == turn}
    return found
