"""Records what each step did, as plain data: who held which slot, and where the time went.

A :class:`StepRecorder` is a step observer (see :class:`ekiden.engine.engine_core.StepObserver`). It copies what it is
shown, because sequences go on changing after a step.
"""

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ekiden.engine.engine_core import StepView
from ekiden.evaluation.metrics import StepSample


class Work(StrEnum):
    """What a row did in a step."""

    PREFILL = "prefill"
    DECODE = "decode"
    PADDING = "padding"


class SlotRow(NamedTuple):
    """One row of one step; a tuple, as the recorder's own time lies within what a bench measures."""

    slot: int
    request_id: str
    num_tokens: int
    work: Work


@dataclass(frozen=True, slots=True)
class SlotStep:
    """One step: seconds on the engine's clock, and its rows in no particular order."""

    index: int
    start: float
    end: float
    rows: tuple[SlotRow, ...]


class StepRecorder:
    """Keeps every step it is shown. ``model`` and ``sampling`` seconds lie beside ``steps``, index by index."""

    def __init__(self) -> None:
        self.steps: list[SlotStep] = []
        self._timings: list[tuple[float, float]] = []

    def on_step(self, view: StepView) -> None:
        self.steps.append(SlotStep(view.index, view.start, view.end, tuple(_rows(view))))
        self._timings.append((view.output.timing.model, view.output.timing.sampling))

    def clear(self) -> None:
        self.steps.clear()
        self._timings.clear()

    def samples(self) -> list[StepSample]:
        """Each step with its wall time: to the start of the next one, so that work between steps counts too."""
        samples = []
        for index, (step, (model, sampling)) in enumerate(zip(self.steps, self._timings, strict=True)):
            end = self.steps[index + 1].start if index + 1 < len(self.steps) else step.end
            samples.append(
                StepSample(
                    seconds=end - step.start,
                    model_seconds=model,
                    sampling_seconds=sampling,
                    decode_tokens=_tokens(step.rows, Work.DECODE),
                    prefill_tokens=_tokens(step.rows, Work.PREFILL),
                )
            )
        return samples


def _rows(view: StepView) -> list[SlotRow]:
    advanced = {update.request_id for update in view.updates if update.token_ids}
    rows = []
    for sequence, row, result in zip(view.formed.sequences, view.formed.plan.rows, view.output.rows, strict=True):
        num_tokens = len(row.token_ids) - row.num_drafts + max(0, len(result.tokens) - 1)
        # A row that ended in this very step is marked as padding by now, but it did advance.
        if sequence.padding and sequence.request_id not in advanced:
            work = Work.PADDING
        else:
            work = Work.PREFILL if row.prefill else Work.DECODE
        rows.append(SlotRow(row.slot, sequence.request_id, num_tokens, work))
    return rows


def _tokens(rows: Rows[SlotRow], work: Work) -> int:
    return sum(row.num_tokens for row in rows if row.work is work)
