"""Slot-by-time charts: one line a slot, time to the right, a letter for the request that held the slot.

Letters and not only colours, so that a chart reads on any terminal and to any eye. ``·`` is an empty slot, ``░`` a
finished row that a padded batch still computes. Charts to be compared share ``seconds_per_column``.
"""

from collections.abc import Mapping, Sequence

from rich.style import Style
from rich.text import Text

from ekiden.evaluation.charts.slots import stays
from ekiden.evaluation.charts.trace import SlotStep

EMPTY, PADDED = "·", "░"


def chart_rows(
    steps: Sequence[SlotStep], num_slots: int, names: Mapping[str, str], *, seconds_per_column: float
) -> list[str]:
    """One string a slot. A column shows who held the slot at the middle of its time."""
    if not steps:
        return [""] * num_slots
    begin = steps[0].start
    columns = max(1, round((steps[-1].end - begin) / seconds_per_column))
    rows = [[EMPTY] * columns for _ in range(num_slots)]
    for stay in stays(steps):
        # To the start of the next step: host time between steps is nobody's gap.
        end = steps[stay.last_step + 1].start if stay.last_step + 1 < len(steps) else stay.end
        first = round((stay.start - begin) / seconds_per_column)
        after = min(columns, max(first + 1, round((end - begin) / seconds_per_column)))
        for column in range(first, after):
            middle = begin + (column + 0.5) * seconds_per_column
            padded = stay.padding_from is not None and middle >= stay.padding_from
            rows[stay.slot][column] = PADDED if padded else names[stay.request_id]
    return ["".join(row) for row in rows]


def coloured(row: str, colour_of_name: Mapping[str, str]) -> Text:
    """A chart row with each letter on its request's colour."""
    text = Text()
    for character in row:
        colour = colour_of_name.get(character)
        text.append(character, Style(color="#000000", bgcolor=colour) if colour else Style(dim=True))
    return text


def axis(columns: int, seconds_per_column: float) -> str:
    """A line of seconds below a chart, a mark about every ten columns."""
    return "".join(f"{f'{c * seconds_per_column:.1f}s':<10}" for c in range(0, columns + 1, 10)).rstrip()
