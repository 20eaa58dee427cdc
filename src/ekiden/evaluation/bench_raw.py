"""The bare loop: a runner's passes with the least around them. No queue, no policy, no KV bookkeeping, no stop rules.

Prompts are prefilled in steps of the token budget, then all rows decode together; a token is the argmax of its logits.
What the engine makes of the same work is measured against this.
"""

import time
from dataclasses import dataclass

from ekiden.config import Config
from ekiden.evaluation.bench import Figures, Shape
from ekiden.evaluation.metrics import StepSample, step_figures, throughput
from ekiden.evaluation.workload import synthetic_prompts
from ekiden.state.plan import BatchPlan, Row, RowSampling
from ekiden.state.runner import ModelRunner
from ekiden.state.sampling_params import SamplingParams

_GREEDY = SamplingParams(temperature=0.0)


class TooManyRows(ValueError):
    """The rows of a bench do not fit the KV pool."""


def bench_raw(runner: ModelRunner, config: Config, shape: Shape) -> Figures:
    """Figures without ``lineage``. Raises :class:`TooManyRows`."""
    _run(runner, config, shape, output_tokens=min(4, shape.output_tokens))  # warm-up
    start = time.monotonic()
    prefill, decode = _run(runner, config, shape, output_tokens=shape.output_tokens)
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


@dataclass(slots=True)
class _Answer:
    """One sequence of the bare loop: its tokens, how many of them are computed, and its blocks."""

    slot: int
    token_ids: list[int]
    num_prompt_tokens: int
    blocks: tuple[int, ...]
    sampling: RowSampling
    num_computed: int = 0

    @property
    def prefilling(self) -> bool:
        return self.num_computed < self.num_prompt_tokens

    def row(self, count: int) -> Row:
        end = self.num_computed + count
        tokens = tuple(self.token_ids[self.num_computed : end])
        sampling = self.sampling if end == len(self.token_ids) else None
        return Row(self.slot, self.num_computed, tokens, self.blocks, sampling, self.prefilling)


def _run(
    runner: ModelRunner, config: Config, shape: Shape, *, output_tokens: int
) -> tuple[list[StepSample], list[StepSample]]:
    """One round from empty sequences: the steps of the prefill, and those of the decode."""
    answers = _answers(runner, shape)
    prefill: list[StepSample] = []
    todo = list(answers)
    while todo:
        rows = _prefill_rows(todo, config.scheduler.max_num_batched_tokens, runner.info.chunks.border)
        prefill.append(_step(runner, answers, rows))
        todo = [answer for answer in todo if answer.prefilling]
    decode = [_step(runner, answers, [answer.row(1) for answer in answers]) for _ in range(output_tokens - 1)]
    return prefill, decode


def _answers(runner: ModelRunner, shape: Shape) -> list[_Answer]:
    info = runner.info
    blocks_each = -(-(shape.prompt_tokens + shape.output_tokens) // info.block_size)
    if blocks_each * shape.rows > info.num_blocks:
        raise TooManyRows(
            f"{shape.rows} rows of {shape.prompt_tokens} + {shape.output_tokens} tokens need "
            f"{blocks_each * shape.rows} KV blocks and there are {info.num_blocks}; raise --kv-cache-size"
        )
    prompts = synthetic_prompts(shape.rows, shape.prompt_tokens, seed=shape.seed, vocab_size=info.vocab_size)
    sampling = RowSampling(_GREEDY, 0, shape.prompt_tokens)
    return [
        _Answer(slot, list(prompt), len(prompt), tuple(range(slot * blocks_each, (slot + 1) * blocks_each)), sampling)
        for slot, prompt in enumerate(prompts)
    ]


def _prefill_rows(todo: list[_Answer], budget: int, border: int) -> list[Row]:
    """The next chunks, in order, up to ``budget`` tokens; a chunk that is not a prompt's last ends at a border."""
    rows: list[Row] = []
    for answer in todo:
        wanted = answer.num_prompt_tokens - answer.num_computed
        count = wanted if wanted <= budget else budget // border * border
        if count <= 0:
            break
        rows.append(answer.row(count))
        budget -= count
    return rows


def _step(runner: ModelRunner, answers: list[_Answer], rows: list[Row]) -> StepSample:
    """Compute the rows and append the tokens that they give."""
    start = time.perf_counter()
    output = runner.execute(BatchPlan(rows))
    for row, result in zip(rows, output.rows, strict=True):
        answers[row.slot].num_computed = row.end
        answers[row.slot].token_ids += result.tokens
    tokens = sum(len(row.token_ids) for row in rows)
    prefill = rows[0].prefill
    return StepSample(
        seconds=time.perf_counter() - start,
        model_seconds=output.timing.model,
        sampling_seconds=output.timing.sampling,
        decode_tokens=0 if prefill else tokens,
        prefill_tokens=tokens if prefill else 0,
    )
