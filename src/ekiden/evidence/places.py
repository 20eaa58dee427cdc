"""Which slots admissions gave: the decisions of a turn have them."""

from collections.abc import Iterable

from ekiden.evidence.reader import LedgerReader, decisions_of
from ekiden.evidence.timeline import Timeline


def admitted_slots(reader: LedgerReader, holders: Iterable[Timeline]) -> dict[int, int]:
    """The slots that the admissions of requests gave, by number. One whose turn is no longer kept is left out."""
    wanted = {one.number: one.admitted.turn for one in holders if one.admitted is not None}
    found: dict[int, int] = {}
    for turn in set(wanted.values()):
        row = reader.turn(turn)
        if row is not None:
            decisions = decisions_of(row)
            given = (*decisions.admitted_start, *decisions.admitted)
            found |= {number: slot for number, slot, *_ in given if wanted.get(number) == turn}
    return found
