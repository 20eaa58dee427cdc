"""The runner: it divides a step into passes (``passes.py``) and calls the compiled model for each.

:func:`_inputs_of` turns a pass into the model's input arrays. A pass's logits are a view of the model's output, so its
tokens are chosen before the next pass overwrites them.
"""

import time
from collections import defaultdict

from ekiden.backends.openvino.kv_pool import BLOCK_SIZE
from ekiden.backends.openvino.paged_model import Inputs, PagedModel, flat_inputs
from ekiden.backends.openvino.passes import DUMMY, NO_LIMITS, Pass, PassLimits, split
from ekiden.sampling.sampler import Sampler, prompt_logprobs
from ekiden.state.plan import NO_TOKENS, BatchPlan, Row, RowResult, StepOutput, StepTiming
from ekiden.state.request import TokenLogprobs
from ekiden.state.runner import ChunkRules, RunnerInfo

PROMPT_LOGITS_LIMIT = 128
"""The most tokens of a pass with logits of prompts, since each takes as many floats as the vocabulary has tokens."""

CHUNK_RULES = ChunkRules(border=BLOCK_SIZE, least=2, least_rows=2)
"""Other kernels, which round differently, compute a single token (docs/decisions/0001)."""


class OpenVINORunner:
    """A :class:`ekiden.state.runner.ModelRunner` on OpenVINO. Not thread-safe: one step at a time."""

    def __init__(
        self, model: PagedModel, info: RunnerInfo, sampler: Sampler | None = None, *, limits: PassLimits = NO_LIMITS
    ) -> None:
        self.model = model
        self.limits = limits
        # In such a pass any token may want logits, so the limit of logits applies to tokens too.
        bounds = (PROMPT_LOGITS_LIMIT, limits.tokens, limits.logits)
        self._limits_with_prompt_logits = PassLimits(tokens=min(bound for bound in bounds if bound is not None))
        self.info = info
        self._sampler = sampler or Sampler()

    def execute(self, plan: BatchPlan) -> StepOutput:
        pool, rows = self.model.pool, plan.rows
        pool.swap_out(plan.swap_out)
        pool.swap_in(plan.swap_in)
        if plan.empty:
            return StepOutput(rows=[], passes=0)
        results = [NO_TOKENS] * len(rows)
        prompts: dict[int, list[TokenLogprobs]] = defaultdict(list)
        model_seconds = sampling_seconds = 0.0
        passes = self._passes(rows)
        for piece in passes:
            asked, places = _prompt_places(piece, rows)
            logits, seconds = self.model.compute(_inputs_of(piece, rows, pool.scratch_block, places))
            model_seconds += seconds
            began = time.perf_counter()
            chosen = [piece.rows[index] for index in piece.wanted]
            sampled = self._sampler.sample(logits[: len(chosen)], [rows[row] for row in chosen]) if chosen else []
            for row, result in zip(chosen, sampled, strict=True):
                results[row] = result
            for (row, position), line in zip(asked, logits[len(chosen) :], strict=False):
                wanted = rows[row].prompt_logits
                assert wanted is not None
                prompts[row] += prompt_logprobs(line[None], wanted, [position])
            sampling_seconds += time.perf_counter() - began
        for row, found in prompts.items():
            results[row] = RowResult(results[row].tokens, results[row].logprobs, tuple(found))
        return StepOutput(
            rows=results,
            timing=StepTiming(model=model_seconds, sampling=sampling_seconds),
            padding_rows=sum(piece.padding_rows for piece in passes),
            passes=len(passes),
        )

    def _passes(self, rows: list[Row]) -> list[Pass]:
        limits = self.limits if all(row.prompt_logits is None for row in rows) else self._limits_with_prompt_logits
        return split(
            [row.start for row in rows],
            [len(row.token_ids) for row in rows],
            [row.sampling is not None for row in rows],
            limits=limits,
            block_size=BLOCK_SIZE,
        )

    def close(self) -> None:
        """Release the model and the pool; the runner cannot be used afterwards."""
        self.model.close()


def _prompt_places(piece: Pass, rows: list[Row]) -> tuple[list[tuple[int, int]], list[int]]:
    """The prompt positions whose logits a pass must give, as (row, position), and their indices among its tokens."""
    positions: list[tuple[int, int]] = []
    places: list[int] = []
    begin = 0
    for row, start, count in zip(piece.rows, piece.starts, piece.counts, strict=True):
        if row != DUMMY and (asked := rows[row].prompt_logits) is not None:
            for position in range(max(start, asked.first), min(start + count, asked.first + len(asked.targets))):
                positions.append((row, position))
                places.append(begin + position - start)
        begin += count
    return positions, places


def _inputs_of(piece: Pass, rows: list[Row], scratch_block: int, places: list[int]) -> Inputs:
    token_ids: list[int] = []
    blocks: list[int] = []
    block_counts: list[int] = []
    for index, start, count in zip(piece.rows, piece.starts, piece.counts, strict=True):
        if index == DUMMY:
            token_ids.append(0)
            blocks.append(scratch_block)
            block_counts.append(1)
            continue
        row = rows[index]
        own, first = row.token_ids, start - row.start
        token_ids.extend(own if len(own) == count else own[first : first + count])
        needed = -(-(start + count) // BLOCK_SIZE)
        blocks.extend(row.blocks if len(row.blocks) == needed else row.blocks[:needed])
        block_counts.append(needed)
    return flat_inputs(token_ids, piece.starts, piece.counts, blocks, block_counts, piece.wanted, places)
