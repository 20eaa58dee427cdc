"""The bare loop: a runner's passes with the least around them. No queue, no policy, no KV bookkeeping, no stop rules.

Prompts are prefilled in steps of the token budget, then all rows decode together; a token is the argmax of its logits.
What the engine makes of the same work is measured against this.
"""

import time

from ekiden.backends.base import ModelRunner
from ekiden.config import Config
from ekiden.evaluation.bench import Shape
from ekiden.evaluation.workload import synthetic_prompts
from ekiden.measure.figures import Figures, StepSample, step_figures, throughput
from ekiden.state.plan import BatchPlan
from ekiden.state.request import Request
from ekiden.state.sequence import Sequence


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


def _run(
    runner: ModelRunner, config: Config, shape: Shape, *, output_tokens: int
) -> tuple[list[StepSample], list[StepSample]]:
    """One round from empty sequences: the steps of the prefill, and those of the decode."""
    sequences = _sequences(runner, shape)
    prefill: list[StepSample] = []
    todo = list(sequences)
    while todo:
        plan = _prefill_plan(todo, config.scheduler.max_num_batched_tokens, runner.info.block_size)
        prefill.append(_step(runner, plan, decode=False))
        todo = [sequence for sequence in todo if sequence.is_prefilling]
    decode: list[StepSample] = []
    for _ in range(output_tokens - 1):
        plan = BatchPlan()
        for sequence in sequences:
            plan.add(sequence, 1)
        decode.append(_step(runner, plan, decode=True))
    return prefill, decode


def _sequences(runner: ModelRunner, shape: Shape) -> list[Sequence]:
    info = runner.info
    blocks_each = -(-(shape.prompt_tokens + shape.output_tokens) // info.block_size)
    if blocks_each * shape.rows > info.num_blocks:
        raise TooManyRows(
            f"{shape.rows} rows of {shape.prompt_tokens} + {shape.output_tokens} tokens need "
            f"{blocks_each * shape.rows} KV blocks and there are {info.num_blocks}; raise --kv-cache-size"
        )
    prompts = synthetic_prompts(shape.rows, shape.prompt_tokens, seed=shape.seed, vocab_size=info.vocab_size)
    return [
        Sequence(
            request=Request(
                request_id=str(row), prompt_token_ids=tuple(prompt), sampling=shape.sampling, arrival_time=0.0
            ),
            seed=0,
            token_ids=list(prompt),
            num_prompt_tokens=len(prompt),
            max_total_tokens=shape.prompt_tokens + shape.output_tokens,
            stop_token_ids=frozenset(),
            block_table=list(range(row * blocks_each, (row + 1) * blocks_each)),
        )
        for row, prompt in enumerate(prompts)
    ]


def _prefill_plan(todo: list[Sequence], budget: int, block_size: int) -> BatchPlan:
    """The next chunks, in order, up to ``budget`` tokens; a chunk that is not a prompt's last ends with a block."""
    plan = BatchPlan()
    for sequence in todo:
        left = budget - plan.total_tokens
        wanted = sequence.num_uncomputed_tokens
        count = wanted if wanted <= left else left // block_size * block_size
        if count <= 0:
            break
        plan.add(sequence, count)
    return plan


def _step(runner: ModelRunner, plan: BatchPlan, *, decode: bool) -> StepSample:
    """Compute a plan and append the highest token of each row that has logits."""
    start = time.perf_counter()
    model = sampling = 0.0
    chosen: list[tuple[int, int]] = []
    for output in runner.execute(plan):
        began = time.perf_counter()
        if output.rows:
            chosen.extend(zip(output.rows, output.logits.argmax(axis=1).tolist(), strict=True))
        sampling += time.perf_counter() - began
        model += output.model_seconds
    for sequence, count in zip(plan.sequences, plan.num_tokens, strict=True):
        sequence.num_computed_tokens += count
    for row, token in chosen:
        plan.sequences[row].token_ids.append(token)
    return StepSample(
        seconds=time.perf_counter() - start,
        model_seconds=model,
        sampling_seconds=sampling,
        decode_tokens=plan.total_tokens if decode else 0,
        prefill_tokens=0 if decode else plan.total_tokens,
    )
