"""The model's bare loop, for ``ekiden bench raw``: passes with ready inputs and nothing else between them.

It tells what the hardware and the kernels give; the engine's own figures are read against it. It overwrites the pool,
so it must not run beside an engine.
"""

import time
from dataclasses import dataclass

import numpy as np

from ekiden.backends.openvino.kv_pool import BLOCK_SIZE
from ekiden.backends.openvino.paged_model import Inputs, flat_inputs
from ekiden.backends.openvino.passes import split
from ekiden.backends.openvino.runner import OpenVINORunner

_WARM_UP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BareFigures:
    """``seconds`` of each step; a step computes ``tokens`` tokens in ``passes`` passes of the model."""

    tokens: int
    passes: int
    seconds: list[float]

    @property
    def tokens_per_second(self) -> float:
        return self.tokens * len(self.seconds) / sum(self.seconds)


def decode(runner: OpenVINORunner, *, rows: int, context: int, steps: int, choose: bool = False) -> BareFigures:
    """``steps`` decodes of ``rows`` rows with ``context`` tokens behind each, growing by one a step.

    ``choose`` adds the greedy choice on the host. Raises ValueError when the pool does not hold the rows.
    """
    tables = _tables(runner, rows, context + steps + _WARM_UP)
    seconds = []
    for step in range(_WARM_UP + steps):
        starts, counts, wanted = [context + step] * rows, [1] * rows, [True] * rows
        pieces = split(starts, counts, wanted, limit=runner.pass_limit, block_size=BLOCK_SIZE)
        inputs = [_inputs(runner, tables, piece.rows, piece.starts, piece.counts, piece.wanted) for piece in pieces]
        seconds.append(_run(runner, inputs, choose=choose))
    return BareFigures(tokens=rows, passes=len(inputs), seconds=seconds[_WARM_UP:])


def prefill(runner: OpenVINORunner, *, tokens: int, steps: int) -> BareFigures:
    """``steps`` times the prefill of one prompt of ``tokens`` tokens, at least 2."""
    tables = _tables(runner, 1, tokens)
    pieces = split([0], [tokens], [True], limit=runner.pass_limit, block_size=BLOCK_SIZE)
    inputs = [_inputs(runner, tables, piece.rows, piece.starts, piece.counts, piece.wanted) for piece in pieces]
    seconds = [_run(runner, inputs, choose=False) for _ in range(1 + steps)]
    return BareFigures(tokens=tokens, passes=len(inputs), seconds=seconds[1:])


def _run(runner: OpenVINORunner, passes: list[Inputs], *, choose: bool) -> float:
    """Seconds inside the model, and of the choice where one is made."""
    total = 0.0
    for inputs in passes:
        logits, seconds = runner.model.compute(inputs)
        total += seconds
        if choose:
            begin = time.perf_counter()
            logits.argmax(axis=1)
            total += time.perf_counter() - begin
    return total


def _tables(runner: OpenVINORunner, rows: int, tokens: int) -> list[list[int]]:
    needed = -(-tokens // BLOCK_SIZE)
    if rows * needed > runner.info.num_blocks:
        raise ValueError(
            f"{rows} rows of {tokens} tokens need {rows * needed} KV blocks; the pool has {runner.info.num_blocks}: "
            "raise --kv-cache-size or lower the rows or the context"
        )
    return [list(range(row * needed, (row + 1) * needed)) for row in range(rows)]


def _inputs(
    runner: OpenVINORunner,
    tables: list[list[int]],
    rows: list[int],
    starts: list[int],
    counts: list[int],
    wanted: list[int],
) -> Inputs:
    generator = np.random.default_rng(0)
    token_ids = generator.integers(0, runner.info.vocab_size, sum(counts)).tolist()
    blocks: list[int] = []
    block_counts = []
    for row, start, count in zip(rows, starts, counts, strict=True):
        needed = -(-(start + count) // BLOCK_SIZE)
        blocks.extend([runner.model.pool.scratch_block] if row < 0 else tables[row][:needed])
        block_counts.append(1 if row < 0 else needed)
    return flat_inputs(token_ids, starts, counts, blocks, block_counts, wanted)
