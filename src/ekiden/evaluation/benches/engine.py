"""The in-process benches: the engine on a loaded model, and the scheduler alone on the fake one.

Each returns one flat object with the keys of ``bench --json``. Warm-up is run first and left out.
"""

import os
import platform
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

from ekiden.build.core import build_core, fake_core
from ekiden.config import CacheConfig, Config, EngineConfig, LimitsConfig, SchedulerConfig
from ekiden.engine.driver import Answer, RealClock, Source, drive, run_batch
from ekiden.engine.engine_core import StepResult
from ekiden.engine.interface import ModelCard
from ekiden.engine.parts import EngineParts
from ekiden.evaluation.charts.trace import StepRecorder
from ekiden.evaluation.workloads.synthetic import poisson_arrivals, synthetic_prompts
from ekiden.measure.figures import Figures, RequestRecord, request_figures, step_figures
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams
from ekiden.version import __version__

WARM_UP_TOKENS = 4
WHOLE = "whole"
"""Where in a report's ``lineage`` all that made it stands, digest included."""


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


def sized(config: Config, rows: int) -> Config:
    """``config`` with ``rows`` slots, and a token budget that allows them."""
    budget = max(config.scheduler.max_num_batched_tokens, rows + 2 * config.cache.block_size)
    return scheduled(config, max_num_seqs=rows, max_num_batched_tokens=budget)


def scheduled(config: Config, **scheduler: object) -> Config:
    """``config`` with some settings of its scheduler changed."""
    return replace(config, scheduler=replace(config.scheduler, **scheduler))  # type: ignore[arg-type]


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
        names = ("batching", "scheduling_policy", "max_num_batched_tokens")
        made |= {name: getattr(config.scheduler, name) for name in names}
    return made


def plain_request(
    request_id: str, prompt: Sequence[int], sampling: SamplingParams, arrival_time: float, tenant: str = "default"
) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=sampling,
        arrival_time=arrival_time,
        tenant=tenant,
    )


def requests_for(shape: Shape, *, vocab_size: int, start: float, name: str = "bench") -> list[Request]:
    """Synthetic requests that arrive at ``start``, or from then on at the shape's rate."""
    due = poisson_arrivals(shape.requests, shape.rate, seed=shape.seed) if shape.rate else [0.0] * shape.requests
    prompts = synthetic_prompts(shape.requests, shape.prompt_tokens, seed=shape.seed, vocab_size=vocab_size)
    sampling = SamplingParams(
        temperature=shape.temperature, top_p=shape.top_p, max_tokens=shape.output_tokens, ignore_eos=True
    )
    return [
        plain_request(f"{name}-{index}", prompt, sampling, start + due[index]) for index, prompt in enumerate(prompts)
    ]


def bench_engine(
    parts: EngineParts, config: Config, shape: Shape, *, on_finish: Callable[[], None] = lambda: None
) -> Figures:
    """``shape.requests`` requests through the whole engine in this process.

    All wait from the start, as an offline batch whose prompts are computed first, unless the shape has a rate (open
    loop) or a concurrency (closed loop), which schedule as a server does.
    """
    config = sized(config, shape.rows)
    if shape.rate is None and shape.concurrency is None:
        config = scheduled(config, prefill_first=True)
    recorder = StepRecorder()
    core = build_core(parts, config, recorder=recorder)
    warm_up = replace(
        shape, requests=min(shape.rows, shape.requests), output_tokens=WARM_UP_TOKENS, seed=shape.seed + 1
    )
    vocab_size = parts.card.vocab_size
    run_batch(core, requests_for(warm_up, vocab_size=vocab_size, start=time.monotonic(), name="warm-up"))
    recorder.clear()
    start = time.monotonic()
    requests = requests_for(shape, vocab_size=vocab_size, start=start)
    answers = run_batch(core, requests, concurrency=shape.concurrency, on_finish=lambda answer: on_finish())
    return {
        **answer_figures(answers, time.monotonic() - start),
        **step_figures(recorder.samples()),
        "lineage": lineage(parts.card, shape, config),
    }


def answer_figures(answers: Sequence[Answer], duration: float) -> Figures:
    """Counts, rates and latencies from how the answers ended."""
    return request_figures([_record_of(answer) for answer in answers], duration=duration)


def _record_of(answer: Answer) -> RequestRecord:
    finish, refusal = answer.finish, answer.refusal
    if finish is None:
        return RequestRecord(intended=0.0, failure=refusal.reason.value if refusal else "unanswered")
    return RequestRecord(
        intended=finish.arrival_time,
        event_times=[] if finish.first_token_time is None else [finish.first_token_time, finish.finish_time],
        prompt_tokens=finish.num_prompt_tokens,
        output_tokens=finish.num_output_tokens,
    )


def bench_scheduler(
    *,
    rows: int,
    waiting: int,
    steps: int,
    seed: int,
    order: str = "fcfs",
    tenants: int = 1,
    speculation: str = "ngram",
) -> Figures:
    """Time of a step when the model costs next to nothing: what our own work costs.

    ``rows`` sequences run and ``waiting`` more wait, of ``tenants`` in turns; lengths vary so that some end, and are
    replaced, in most steps.
    """
    recorder, requests = StepRecorder(), rows + waiting
    config = Config(
        scheduler=SchedulerConfig(
            max_num_seqs=rows, max_num_batched_tokens=rows + max(rows, 2 * 16), scheduling_policy=order
        ),
        cache=CacheConfig(block_size=16),
        engine=EngineConfig(speculation=speculation),
        limits=LimitsConfig(max_num_queued_reqs=10 * requests, max_num_queued_tokens=1_000 * requests),
    )
    core, source, clock = fake_core(config, recorder), random.Random(seed), RealClock()
    for index in range(requests):
        sampling = SamplingParams(temperature=0.0, max_tokens=source.randrange(steps, 3 * steps))
        prompt = [source.randrange(1000) for _ in range(4)]
        core.add_request(plain_request(str(index), prompt, sampling, 0.0, f"tenant-{index % tenants}"))

    def until_all_rows_run() -> Source:
        """Intake of all that wait, and the prefills."""
        while core.stats().num_running < rows or not recorder.steps:
            yield None

    def ignore(result: StepResult) -> None:
        """The recorder sees the steps."""

    drive(core, until_all_rows_run(), clock, ignore)
    recorder.clear()
    begin, begin_cpu = time.monotonic(), time.process_time()
    drive(core, repeat(None, steps), clock, ignore)
    duration, cpu = time.monotonic() - begin, time.process_time() - begin_cpu
    return {
        "running": rows,
        "waiting": waiting,
        "scheduling_policy": order,
        "tenants": tenants,
        "speculation": speculation,
        "duration_seconds": duration,
        "steps": steps,
        "cpu_seconds_per_step": cpu / steps,
        "step_seconds": step_figures(recorder.samples())["step_seconds"],
    }
