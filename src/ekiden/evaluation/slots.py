"""What a record of slots says: how full they were, and how long a freed one stayed empty while others waited."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ekiden.evaluation.trace import SlotStep, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """One request in one slot. Steps count from 0 in the record; both ends are included. Times are seconds."""

    slot: int
    request_id: str
    first_step: int
    last_step: int
    start: float
    end: float
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
    open_stays: dict[int, Stay] = {}
    closed: list[Stay] = []
    for position, step in enumerate(steps):
        for row in step.rows:
            stay = open_stays.get(row.slot)
            padding_from = step.start if row.work is Work.PADDING else None
            if stay is None or stay.request_id != row.request_id or stay.last_step < position - 1:
                if stay is not None:
                    closed.append(stay)
                first, start = position, step.start
            else:
                first, start = stay.first_step, stay.start
                padding_from = stay.padding_from if stay.padding_from is not None else padding_from
            open_stays[row.slot] = Stay(
                slot=row.slot,
                request_id=row.request_id,
                first_step=first,
                last_step=position,
                start=start,
                end=step.end,
                padding_from=padding_from,
            )
    return sorted([*closed, *open_stays.values()], key=lambda stay: (stay.start, stay.slot))


def slot_figures(steps: Sequence[SlotStep], num_slots: int) -> SlotFigures:
    """Figures of a run in which all requests were waiting from the start."""
    if not steps:
        return SlotFigures(steps=0, seconds=0.0, slot_utilisation=0.0, handover_steps=())
    useful = sum(row.work is not Work.PADDING for step in steps for row in step.rows)
    by_slot: dict[int, list[Stay]] = {}
    for stay in stays(steps):
        by_slot.setdefault(stay.slot, []).append(stay)
    handovers = [
        _first_empty_steps(before, after)
        for slot_stays in by_slot.values()
        for before, after in itertools.pairwise(slot_stays)
    ]
    return SlotFigures(
        steps=len(steps),
        seconds=steps[-1].end - steps[0].start,
        slot_utilisation=useful / (num_slots * len(steps)),
        handover_steps=tuple(handovers),
    )


def _first_empty_steps(before: Stay, after: Stay) -> int:
    return after.first_step - before.last_step - 1


def letters(request_ids: Sequence[str]) -> Mapping[str, str]:
    """A character for each request, in order: A to Z, a to z, then digits, and round again."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    return {request_id: alphabet[index % len(alphabet)] for index, request_id in enumerate(request_ids)}
