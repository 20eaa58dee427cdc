"""Runs plans on a compiled OpenVINO model: builds the flat inputs, calls the model, hands out views of its logits.

Theory of operation: a step becomes one or more passes (``passes.py``). For each pass the rows' new tokens lie one after
the other in ``input_ids``; the other inputs say where each row begins, what it has behind it and in which blocks. The
inputs are wrapped, not copied, and ``infer`` releases the interpreter's lock, so the host's part of a pass is the list
handling in :func:`_flat_inputs`.

The head runs for the rows named in ``logit_rows`` only. Where any are wanted there are at least two (the last one
repeated): a single row takes another kernel and rounds differently.
"""

import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import openvino as ov

from ekiden.backends.base import FloatMatrix, PassOutput, RunnerError, RunnerInfo
from ekiden.backends.openvino.kv_pool import BLOCK_SIZE, KVPool
from ekiden.backends.openvino.passes import DUMMY, Pass, split
from ekiden.state.plan import BatchPlan
from ekiden.state.sequence import Sequence

Inputs = dict[str, npt.NDArray[np.generic]]


class OpenVINORunner:
    """A compiled model with its KV pool. Not thread-safe: one step at a time."""

    def __init__(
        self, compiled: ov.CompiledModel, pool: KVPool, info: RunnerInfo, *, pass_limit: int | None = None
    ) -> None:
        self._info = info
        self._pool = pool
        self._pass_limit = pass_limit
        self._request = compiled.create_infer_request()
        for name, tensor in pool.tensors.items():
            self._request.set_tensor(name, tensor)
        self._bound: list[ov.Tensor] = []

    @property
    def info(self) -> RunnerInfo:
        return self._info

    @property
    def pass_limit(self) -> int | None:
        """Tokens that a pass may hold; None when nothing but the plan limits it."""
        return self._pass_limit

    def execute(self, plan: BatchPlan) -> Iterator[PassOutput]:
        """See :class:`ekiden.backends.base.ModelRunner`. Every pass is yielded, those without logits too."""
        self._pool.swap_out(plan.swap_out)
        self._pool.swap_in(plan.swap_in)
        if plan.empty:
            return
        starts = [sequence.num_computed_tokens for sequence in plan.sequences]
        wanted = [
            start + count >= len(sequence.token_ids)
            for start, count, sequence in zip(starts, plan.num_tokens, plan.sequences, strict=True)
        ]
        passes = split(starts, plan.num_tokens, wanted, limit=self._pass_limit, block_size=BLOCK_SIZE)
        for piece in passes:
            logits, seconds = self.compute(_flat_inputs(piece, plan.sequences, self._pool.scratch_block))
            rows = [piece.rows[index] for index in piece.wanted]
            yield PassOutput(
                rows=rows, logits=logits[: len(rows)], model_seconds=seconds, padding_rows=piece.padding_rows
            )

    def compute(self, inputs: Inputs) -> tuple[FloatMatrix, float]:
        """One pass on ready inputs: a view of the logits ``[logit rows, vocab]`` and the seconds it took.

        The view is valid until the next pass.
        """
        request = self._request
        # The request reads these arrays in place, so they must outlive the pass.
        self._bound = [ov.Tensor(array, shared_memory=True) for array in inputs.values()]
        try:
            for name, tensor in zip(inputs, self._bound, strict=True):
                request.set_tensor(name, tensor)
            begin = time.perf_counter()
            request.infer(share_outputs=True)
            seconds = time.perf_counter() - begin
        except RuntimeError as error:
            raise RunnerError(f"the model could not compute a pass: {error}") from error
        logits = request.get_output_tensor(0).data
        return logits.reshape(-1, logits.shape[-1]), seconds

    def close(self) -> None:
        """Let go of the model and the pool; the runner cannot be used afterwards."""
        del self._request
        self._pool.tensors.clear()


def _flat_inputs(piece: Pass, sequences: list[Sequence], scratch_block: int) -> Inputs:
    """The model's inputs for one pass."""
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
    return flat_inputs(token_ids, piece.starts, piece.counts, blocks, block_counts, piece.wanted)


def flat_inputs(
    token_ids: list[int],
    starts: list[int],
    counts: list[int],
    blocks: list[int],
    block_counts: list[int],
    wanted: list[int],
) -> Inputs:
    """Arrays by input name. ``starts``, ``counts`` and ``block_counts`` are by row; ``wanted`` are indices of rows
    whose last token needs logits."""
    past = np.array(starts, np.int32)
    begins = _begins(counts)
    tokens = len(token_ids)
    if tokens == len(counts):
        positions = past.astype(np.int64)
    else:
        positions = np.arange(tokens, dtype=np.int64) + np.repeat(past - begins[:-1], counts)
    last = begins[1:] - 1
    if len(wanted) == len(counts) and len(counts) > 1:
        logit_rows = last
    else:
        # No row wants logits: the head must still run for one. One row wants them: twice, see above.
        chosen = wanted if len(wanted) > 1 else wanted * 2 or [0]
        logit_rows = last[chosen]
    return {
        "input_ids": np.array(token_ids, np.int64),
        "position_ids": positions,
        "past_lens": past,
        "subsequence_begins": begins,
        "block_indices": np.array(blocks, np.int32),
        "block_indices_begins": _begins(block_counts),
        "max_context_len": np.array(max(map(int.__add__, starts, counts)), np.int32),
        "logit_rows": logit_rows,
    }


def _begins(counts: list[int]) -> npt.NDArray[np.int32]:
    """``[0, c0, c0 + c1, ...]``."""
    begins = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=begins[1:])
    return begins
