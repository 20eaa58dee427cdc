"""The in-process benches: the engine on a loaded model, and the scheduler alone on the fake one.

Each returns one flat object with the keys of ``bench --json``. Warm-up is run first and left out.
"""

import os
import platform
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ekiden.build.core import build_core
from ekiden.config import CacheConfig, Config, LimitsConfig, SchedulerConfig
from ekiden.engine.engine_core import EngineCore
from ekiden.engine.interface import ModelCard
from ekiden.engine.parts import EngineParts
from ekiden.evaluation.metrics import quantiles, step_figures, throughput
from ekiden.evaluation.offline import Answer, run_batch
from ekiden.evaluation.trace import StepRecorder
from ekiden.evaluation.workload import poisson_arrivals, synthetic_prompts
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams
from ekiden.version import __version__

Figures = dict[str, object]
WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What every bench is asked: how many at once, how long, how many in all."""

    rows: int = 64
    prompt_tokens: int = 128
    output_tokens: int = 64
    requests: int = 64
    seed: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    concurrency: int | None = None
    rate: float | None = None

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature, top_p=self.top_p, max_tokens=self.output_tokens, ignore_eos=True
        )


def sized(config: Config, rows: int) -> Config:
    """``config`` with ``rows`` slots, and a token budget that allows them."""
    least = rows + 2 * config.cache.block_size
    scheduler = replace(
        config.scheduler,
        max_num_seqs=rows,
        max_num_batched_tokens=max(config.scheduler.max_num_batched_tokens, least),
    )
    return replace(config, scheduler=scheduler)


def prompts_first(config: Config) -> Config:
    """``config`` scheduling as an offline batch does, whose streams nobody watches."""
    return replace(config, scheduler=replace(config.scheduler, prefill_first=True))


WHOLE = "whole"
"""Where in a report's ``lineage`` all that made it stands, digest included."""


def lineage(card: ModelCard | None, shape: Shape, config: Config | None) -> Figures:
    """What the figures were made with."""
    made: Figures = {
        "ekiden": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "seed": shape.seed,
    }
    if card is not None:
        made |= {"model": card.model_id, "fingerprint": card.fingerprint, WHOLE: card.lineage.as_object()}
    if config is not None:
        made |= {
            "batching": config.scheduler.batching,
            "scheduling_policy": config.scheduler.scheduling_policy,
            "max_num_batched_tokens": config.scheduler.max_num_batched_tokens,
        }
    return made


def requests_for(shape: Shape, *, vocab_size: int, start: float, name: str = "bench") -> list[Request]:
    """Synthetic requests that arrive at ``start``, or from then on at the shape's rate."""
    due = poisson_arrivals(shape.requests, shape.rate, seed=shape.seed) if shape.rate else [0.0] * shape.requests
    prompts = synthetic_prompts(shape.requests, shape.prompt_tokens, seed=shape.seed, vocab_size=vocab_size)
    return [
        Request(
            request_id=f"{name}-{index}",
            prompt_token_ids=tuple(prompt),
            sampling=shape.sampling,
            arrival_time=start + due[index],
        )
        for index, prompt in enumerate(prompts)
    ]


def bench_engine(
    parts: EngineParts, config: Config, shape: Shape, *, on_finish: Callable[[], None] | None = None
) -> Figures:
    """``shape.requests`` requests through the whole engine in this process.

    All wait from the start, as an offline batch, unless the shape has a rate (open loop) or a concurrency (closed
    loop), which schedule as a server does.
    """
    config = sized(config, shape.rows)
    if shape.rate is None and shape.concurrency is None:
        config = prompts_first(config)
    recorder = StepRecorder()
    core = build_core(parts, config, observer=recorder)
    warm_up = replace(
        shape, requests=min(shape.rows, shape.requests), output_tokens=WARM_UP_TOKENS, seed=shape.seed + 1
    )
    vocab_size = parts.card.vocab_size
    run_batch(core, requests_for(warm_up, vocab_size=vocab_size, start=time.monotonic(), name="warm-up"))
    recorder.clear()
    start = time.monotonic()
    requests = requests_for(shape, vocab_size=vocab_size, start=start)
    told = (lambda request, answer: on_finish()) if on_finish else None
    answers = run_batch(core, requests, concurrency=shape.concurrency, on_finish=told)
    duration = time.monotonic() - start
    return {
        **answer_figures(answers, duration),
        **step_figures(recorder.samples()),
        "lineage": lineage(parts.card, shape, config),
    }


def answer_figures(answers: Sequence[Answer], duration: float) -> Figures:
    """Counts, rates and latencies from how the answers ended."""
    whole = [answer.finish for answer in answers if answer.finish is not None]
    prompt = sum(finish.num_prompt_tokens for finish in whole)
    output = sum(finish.num_output_tokens for finish in whole)
    started = [(f, f.first_token_time) for f in whole if f.first_token_time is not None]
    return {
        "requests": len(answers),
        "failures": len(answers) - len(whole),
        "duration_seconds": duration,
        **throughput(prompt, output, duration),
        "ttft_seconds": quantiles(first - f.arrival_time for f, first in started),
        "tpot_seconds": quantiles(
            (f.finish_time - first) / (f.num_output_tokens - 1) for f, first in started if f.num_output_tokens > 1
        ),
        "e2e_seconds": quantiles(f.finish_time - f.arrival_time for f in whole),
    }


def bench_scheduler(
    make_core: Callable[[SchedulerConfig, CacheConfig, LimitsConfig, StepRecorder], EngineCore],
    *,
    rows: int,
    waiting: int,
    steps: int,
    seed: int,
    order: str = "fcfs",
    tenants: int = 1,
) -> Figures:
    """Time of a step when the model costs next to nothing: what our own work costs.

    ``rows`` sequences run and ``waiting`` more wait, of ``tenants`` in turns; lengths vary so that some end, and are
    replaced, in most steps.
    """
    recorder = StepRecorder()
    core = make_core(
        SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=2 * rows, scheduling_policy=order),
        CacheConfig(block_size=16),
        LimitsConfig(max_num_queued_reqs=10 * (rows + waiting), max_num_queued_tokens=1_000 * (rows + waiting)),
        recorder,
    )
    source = random.Random(seed)
    for index in range(rows + waiting):
        sampling = SamplingParams(temperature=0.0, max_tokens=source.randrange(steps, 3 * steps))
        prompt = tuple(source.randrange(1000) for _ in range(4))
        core.add_request(
            Request(
                request_id=str(index),
                prompt_token_ids=prompt,
                sampling=sampling,
                arrival_time=0.0,
                tenant=f"tenant-{index % tenants}",
            )
        )
    while core.stats().num_running < rows or not recorder.steps:
        core.step()  # intake of all that wait, and the prefills
    recorder.clear()
    begin, begin_cpu = time.monotonic(), time.process_time()
    for _ in range(steps):
        core.step()
    duration, cpu = time.monotonic() - begin, time.process_time() - begin_cpu
    figures = step_figures(recorder.samples())
    return {
        "running": rows,
        "waiting": waiting,
        "scheduling_policy": order,
        "tenants": tenants,
        "duration_seconds": duration,
        "steps": steps,
        "cpu_seconds_per_step": cpu / steps,
        "step_seconds": figures["step_seconds"],
    }
