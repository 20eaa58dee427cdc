"""The runner: a step becomes one or more passes (``passes.py``), each a call of the compiled model.

Between the engine's plan and the model stands only list handling, :func:`_inputs_of`; the logits go out as views.
"""

from collections.abc import Iterator

from ekiden.backends.base import PassOutput, RunnerInfo
from ekiden.backends.openvino.kv_pool import BLOCK_SIZE
from ekiden.backends.openvino.paged_model import Inputs, PagedModel, flat_inputs
from ekiden.backends.openvino.passes import DUMMY, NO_LIMITS, Pass, PassLimits, split
from ekiden.state.plan import BatchPlan
from ekiden.state.sequence import Sequence

PROMPT_LOGITS_LIMIT = 128
"""Tokens of a pass in which logits of prompts are asked for: they take as many floats a token as the vocabulary has."""


class OpenVINORunner:
    """A :class:`ekiden.backends.base.ModelRunner` on OpenVINO. Not thread-safe: one step at a time."""

    def __init__(self, model: PagedModel, info: RunnerInfo, *, limits: PassLimits = NO_LIMITS) -> None:
        self.model = model
        self.limits = limits
        # Any token may then want logits.
        bounds = (PROMPT_LOGITS_LIMIT, limits.tokens, limits.logits)
        self._limits_with_prompt_logits = PassLimits(tokens=min(bound for bound in bounds if bound is not None))
        self._info = info

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def execute(self, plan: BatchPlan) -> Iterator[PassOutput]:
        """See :class:`ekiden.backends.base.ModelRunner`. Every pass is yielded, those without logits too."""
        pool = self.model.pool
        pool.swap_out(plan.swap_out)
        pool.swap_in(plan.swap_in)
        if plan.empty:
            return
        starts = [sequence.num_computed_tokens for sequence in plan.sequences]
        wanted = [
            start + count >= len(sequence.token_ids)
            for start, count, sequence in zip(starts, plan.num_tokens, plan.sequences, strict=True)
        ]
        asked = [
            sequence.prompt_logit_positions(count)
            for sequence, count in zip(plan.sequences, plan.num_tokens, strict=True)
        ]
        limits = self._limits_with_prompt_logits if any(asked) else self.limits
        for piece in split(starts, plan.num_tokens, wanted, limits=limits, block_size=BLOCK_SIZE):
            positions, places = _prompt_places(piece, asked)
            inputs = _inputs_of(piece, plan.sequences, pool.scratch_block, places)
            logits, seconds = self.model.compute(inputs)
            rows = [piece.rows[index] for index in piece.wanted]
            yield PassOutput(
                rows=rows,
                logits=logits[: len(rows) + len(positions)],
                model_seconds=seconds,
                padding_rows=piece.padding_rows,
                prompt_positions=positions,
            )

    def close(self) -> None:
        """Let go of the model and the pool; the runner cannot be used afterwards."""
        self.model.close()


def _prompt_places(piece: Pass, asked: list[range]) -> tuple[list[tuple[int, int]], list[int]]:
    """The positions of prompts whose logits are asked for in this pass, and where they lie among its tokens."""
    positions: list[tuple[int, int]] = []
    places: list[int] = []
    begin = 0
    for row, start, count in zip(piece.rows, piece.starts, piece.counts, strict=True):
        if row != DUMMY and asked[row]:
            for position in range(max(start, asked[row].start), min(start + count, asked[row].stop)):
                positions.append((row, position))
                places.append(begin + position - start)
        begin += count
    return positions, places


def _inputs_of(piece: Pass, sequences: list[Sequence], scratch_block: int, places: list[int]) -> Inputs:
    token_ids: list[int] = []
    blocks: list[int] = []
    block_counts: list[int] = []
    for row, start, count in zip(piece.rows, piece.starts, piece.counts, strict=True):
        if row == DUMMY:
            token_ids.append(0)
            blocks.append(scratch_block)
            block_counts.append(1)
            continue
        sequence = sequences[row]
        if count == 1:
            token_ids.append(sequence.token_ids[start])
        else:
            token_ids.extend(sequence.token_ids[start : start + count])
        needed = -(-(start + count) // BLOCK_SIZE)
        table = sequence.block_table
        blocks.extend(table if len(table) == needed else table[:needed])
        block_counts.append(needed)
    return flat_inputs(token_ids, piece.starts, piece.counts, blocks, block_counts, piece.wanted, places)
