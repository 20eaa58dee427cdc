"""Records what each step did, as plain data: who held which slot, and where the time went.

A :class:`StepRecorder` records turns as the ledger's recorder does (:class:`ekiden.state.turn.TurnRecorder`). It copies
what it is shown, because sequences go on changing after a step.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ekiden.evaluation.results import StepTotals
from ekiden.measure.figures import StepSample
from ekiden.state.turn import Turn, TurnRecorder


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
    token_budget: int = 0
    free_blocks: int = 0
    """KV blocks that were free when the step had ended."""
    preempted: int = 0


class StepRecorder:
    """Keeps every step that was computed."""

    def __init__(self) -> None:
        self.steps: list[SlotStep] = []
        self._next_turns: list[float] = []
        """For each step but perhaps the last: when the turn after it began, whether that computed anything or not. So
        the time in which an idle engine waits belongs to no step."""

    def clear(self) -> None:
        """Forget all steps, as after a warm-up."""
        self.steps, self._next_turns = [], []

    def record(self, turn: Turn) -> None:
        if len(self._next_turns) < len(self.steps):
            self._next_turns.append(turn.start)
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
        step = SlotStep(
            turn.start,
            turn.end,
            tuple(rows),
            timing.model,
            timing.sampling,
            turn.formed.token_budget,
            turn.num_free_blocks,
            len(turn.formed.preempted),
        )
        self.steps.append(step)

    @property
    def _ends(self) -> list[float]:
        """When each step's time ends: where the next turn begins."""
        return [*self._next_turns, *(step.end for step in self.steps[len(self._next_turns) :])]

    def samples(self) -> list[StepSample]:
        """Each step with its wall time: to the start of the next turn, so that work between steps counts too."""
        return [
            StepSample(
                seconds=end - step.start,
                model_seconds=step.model_seconds,
                sampling_seconds=step.sampling_seconds,
                decode_tokens=sum(row.made for row in step.rows if row.work is Work.DECODE),
                prefill_tokens=sum(row.computed for row in step.rows if row.work is Work.PREFILL),
            )
            for step, end in zip(self.steps, self._ends, strict=True)
        ]

    def totals(self, *, num_slots: int, num_blocks: int, block_size: int) -> StepTotals:
        """Sums over all steps. Rows that only pad a batch are no use, and neither are their tokens."""
        useful = [row for step in self.steps for row in step.rows if row.work is not Work.PADDING]
        return StepTotals(
            steps=len(self.steps),
            seconds=sum(end - step.start for step, end in zip(self.steps, self._ends, strict=True)),
            model_seconds=sum(step.model_seconds for step in self.steps),
            useful_slot_steps=len(useful),
            slot_steps=num_slots * len(self.steps),
            computed_tokens=sum(row.computed for row in useful),
            budget_tokens=sum(step.token_budget for step in self.steps),
            used_block_steps=sum(num_blocks - step.free_blocks for step in self.steps),
            block_steps=num_blocks * len(self.steps),
            preemptions=sum(step.preempted for step in self.steps),
            kv_tokens=num_blocks * block_size,
        )


class Recorders:
    """Shows each turn to several recorders. The ledger's comes last: where it fails, the others have seen the turn."""

    def __init__(self, *recorders: TurnRecorder | None) -> None:
        self._recorders = [recorder for recorder in recorders if recorder is not None]

    def record(self, turn: Turn) -> None:
        for recorder in self._recorders:
            recorder.record(turn)
