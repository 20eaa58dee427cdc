"""The bare loop: a runner's passes with the least around them. No queue, no policy, no KV bookkeeping, no stop rules.

Prompts are prefilled in steps of the token budget, then all rows decode together; a token is the argmax of its logits.
What the engine makes of the same work is measured against this.
"""

import time

from ekiden.config import Config
from ekiden.errors import UserError
from ekiden.evaluation.benches.engine import WARM_UP_TOKENS, Shape
from ekiden.evaluation.workloads.synthetic import synthetic_prompts
from ekiden.measure.figures import Figures, StepSample, step_figures, throughput
from ekiden.state.plan import BatchPlan, Row, RowSampling
from ekiden.state.runner import ModelRunner
from ekiden.state.sampling_params import SamplingParams


class TooManyRows(UserError, ValueError):
    """The rows of a bench do not fit the KV pool."""


def bench_raw(runner: ModelRunner, config: Config, shape: Shape) -> Figures:
    """Figures without ``lineage``. Raises :class:`TooManyRows`."""
    BareLoop(runner, config, shape).run(min(WARM_UP_TOKENS, shape.output_tokens))
    start = time.monotonic()
    prefill, decode = BareLoop(runner, config, shape).run(shape.output_tokens)
    duration = time.monotonic() - start
    seconds = sum(step.seconds for step in prefill)
    prompt_tokens = shape.rows * shape.prompt_tokens
    return {
        "requests": shape.rows,
        "rows": shape.rows,
        "failures": 0,
        "duration_seconds": duration,
        **throughput(prompt_tokens, shape.rows * shape.output_tokens, duration),
        **step_figures(decode),
        "prefill_tokens_per_second": prompt_tokens / seconds if seconds else None,
    }


class BareLoop:
    """``token_ids`` are those of each row's sequence so far, of which the first ``computed`` are in the KV pool."""

    def __init__(self, runner: ModelRunner, config: Config, shape: Shape) -> None:
        info = runner.info
        each = -(-(shape.prompt_tokens + shape.output_tokens) // info.block_size)
        if each * shape.rows > info.num_blocks:
            raise TooManyRows(
                f"{shape.rows} rows of {shape.prompt_tokens} + {shape.output_tokens} tokens need {each * shape.rows} "
                f"KV blocks and there are {info.num_blocks}; raise --kv-cache-size"
            )
        self._runner, self._budget = runner, config.scheduler.max_num_batched_tokens
        self._prompt_tokens = shape.prompt_tokens
        self._blocks = [tuple(range(slot * each, (slot + 1) * each)) for slot in range(shape.rows)]
        self._sampling = RowSampling(SamplingParams(temperature=0.0), 0, shape.prompt_tokens)
        self.token_ids = synthetic_prompts(shape.rows, shape.prompt_tokens, seed=shape.seed, vocab_size=info.vocab_size)
        self.computed = [0] * shape.rows

    def run(self, output_tokens: int) -> tuple[list[StepSample], list[StepSample]]:
        """The steps of the prefill, and those of the decode."""
        prefill = []
        while any(computed < self._prompt_tokens for computed in self.computed):
            prefill.append(self._step(self._prefill_rows()))
        slots = range(len(self.token_ids))
        decode = [self._step([self._row(slot, 1) for slot in slots]) for _ in range(output_tokens - 1)]
        return prefill, decode

    def _prefill_rows(self) -> list[Row]:
        """The next chunks, in order, up to the budget; a chunk that is not a prompt's last ends at a border."""
        rows: list[Row] = []
        budget, border = self._budget, self._runner.info.chunks.border
        for slot, computed in enumerate(self.computed):
            wanted = self._prompt_tokens - computed
            count = wanted if wanted <= budget else budget // border * border
            if count > 0:
                rows.append(self._row(slot, count))
                budget -= count
        return rows

    def _row(self, slot: int, count: int) -> Row:
        start = self.computed[slot]
        tokens = tuple(self.token_ids[slot][start : start + count])
        sampling = self._sampling if start + count == len(self.token_ids[slot]) else None
        return Row(slot, start, tokens, self._blocks[slot], sampling, start < self._prompt_tokens)

    def _step(self, rows: list[Row]) -> StepSample:
        """Compute the rows and append the tokens that they give."""
        start = time.perf_counter()
        output = self._runner.execute(BatchPlan(rows))
        for row, result in zip(rows, output.rows, strict=True):
            self.computed[row.slot] = row.end
            self.token_ids[row.slot] += result.tokens
        seconds, tokens, prefill = time.perf_counter() - start, sum(len(row.token_ids) for row in rows), rows[0].prefill
        return StepSample(
            seconds=seconds,
            model_seconds=output.timing.model,
            sampling_seconds=output.timing.sampling,
            decode_tokens=0 if prefill else tokens,
            prefill_tokens=tokens if prefill else 0,
        )
