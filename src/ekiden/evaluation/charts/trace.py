"""Records what each step did, as plain data: who held which slot, and where the time went.

A :class:`StepRecorder` records turns as the ledger's recorder does (:class:`ekiden.state.turn.TurnRecorder`). It copies
what it is shown, because sequences go on changing after a step.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ekiden.measure.figures import StepSample
from ekiden.state.turn import Turn


class Work(StrEnum):
    """What a row did in a step."""

    PREFILL = "prefill"
    DECODE = "decode"
    PADDING = "padding"


class SlotRow(NamedTuple):
    """One row of one step; a tuple, as the recorder's own time lies within what a bench measures.

    ``computed`` tokens went through the model; ``made`` are the tokens that the answer got from it.
    """

    slot: int
    request_id: str
    work: Work
    computed: int
    made: int


@dataclass(frozen=True, slots=True)
class SlotStep:
    """One step: seconds on the engine's clock, and its rows in no particular order."""

    start: float
    end: float
    rows: tuple[SlotRow, ...]
    model_seconds: float = 0.0
    sampling_seconds: float = 0.0


class StepRecorder:
    """Keeps every step that was computed."""

    def __init__(self) -> None:
        self.steps: list[SlotStep] = []

    def record(self, turn: Turn) -> None:
        if turn.formed is None or turn.output is None:
            return
        # What a row gave and the answer did not take, such as tokens after a stop, does not count.
        made = {update.request_id: len(update.token_ids) for update in turn.updates}
        rows = []
        for sequence, row in zip(turn.formed.sequences, turn.formed.plan.rows, strict=True):
            tokens = made.get(sequence.request_id, 0)
            work = Work.PREFILL if row.prefill else Work.DECODE
            # A row that ended in this very step is marked as padding by now, but it did advance.
            if sequence.padding and not tokens:
                work = Work.PADDING
            rows.append(SlotRow(row.slot, sequence.request_id, work, len(row.token_ids), tokens))
        timing = turn.output.timing
        self.steps.append(SlotStep(turn.start, turn.end, tuple(rows), timing.model, timing.sampling))

    def samples(self) -> list[StepSample]:
        """Each step with its wall time: to the start of the next one, so that work between steps counts too."""
        ends = [*(step.start for step in self.steps[1:]), *(step.end for step in self.steps[-1:])]
        return [
            StepSample(
                seconds=end - step.start,
                model_seconds=step.model_seconds,
                sampling_seconds=step.sampling_seconds,
                decode_tokens=sum(row.made for row in step.rows if row.work is Work.DECODE),
                prefill_tokens=sum(row.computed for row in step.rows if row.work is Work.PREFILL),
            )
            for step, end in zip(self.steps, ends, strict=True)
        ]
