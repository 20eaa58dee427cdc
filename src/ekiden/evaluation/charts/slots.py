"""What a record of slots says: how full they were, and how long a freed one stayed empty while others waited."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ekiden.evaluation.charts.trace import SlotStep, Work


@dataclass(slots=True)
class Stay:
    """One request in one slot. Steps count from 0 in the record; both ends are included. Times are seconds."""

    slot: int
    request_id: str
    first_step: int
    last_step: int
    start: float
    end: float
    output_tokens: int = 0
    """What its rows made; a row may make none, one or several in a step."""
    padding_from: float | None = None
    """When its row became padding; None when it never did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFigures:
    """Formulas: ``slot_utilisation`` is useful slot-steps / (slots x steps). A handover is a slot that one request
    left while others waited; ``handover_steps`` has for each the number of steps for which it then stayed empty."""

    steps: int
    seconds: float
    slot_utilisation: float
    handover_steps: tuple[int, ...]


def stays(steps: Sequence[SlotStep]) -> list[Stay]:
    """Each request's time in its slot, in order of start. A request that comes back after a preemption has two."""
    latest: dict[int, Stay] = {}
    found: list[Stay] = []
    for position, step in enumerate(steps):
        for row in step.rows:
            stay = latest.get(row.slot)
            if stay is None or stay.request_id != row.request_id or stay.last_step < position - 1:
                stay = latest[row.slot] = Stay(row.slot, row.request_id, position, position, step.start, step.end)
                found.append(stay)
            stay.last_step, stay.end = position, step.end
            stay.output_tokens += row.made
            if row.work is Work.PADDING and stay.padding_from is None:
                stay.padding_from = step.start
    return sorted(found, key=lambda stay: (stay.start, stay.slot))


def slot_figures(steps: Sequence[SlotStep], num_slots: int) -> SlotFigures:
    """Figures of a run in which all requests were waiting from the start."""
    by_slot = sorted(stays(steps), key=lambda stay: stay.slot)  # each slot's in order of start
    pairs = [(before, after) for before, after in pairwise(by_slot) if before.slot == after.slot]
    rows = [row for step in steps for row in step.rows]
    return SlotFigures(
        steps=len(steps),
        seconds=steps[-1].end - steps[0].start if steps else 0.0,
        slot_utilisation=sum(row.work is not Work.PADDING for row in rows) / max(1, num_slots * len(steps)),
        handover_steps=tuple(after.first_step - before.last_step - 1 for before, after in pairs),
    )
