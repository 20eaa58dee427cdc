"""How the engine behaves when it is pressed: the same engine and model, one premise changed at a time.

Each bench returns a flat table of its arms, with the limit that the figure is held against beside it. Arrivals are an
open loop from intended times; latencies count from those. An answer is good when it is whole, its first token came
within ``SLO_TTFT`` and its mean time per further token stayed within ``SLO_TPOT``.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ekiden.build.core import build_core
from ekiden.config import Config
from ekiden.engine.driver import RealClock, Sink, Source, arrivals, drive
from ekiden.engine.engine_core import EngineCore, StepResult
from ekiden.engine.parts import EngineParts
from ekiden.evaluation.benches.engine import plain_request, scheduled
from ekiden.evaluation.workloads.synthetic import poisson_arrivals, synthetic_prompts
from ekiden.measure.figures import Figures, RequestRecord
from ekiden.measure.percentiles import median
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams

SLO_TTFT, SLO_TPOT = 4.0, 0.4
_SLO: Figures = {"slo_ttft": SLO_TTFT, "slo_tpot": SLO_TPOT}


def _records_into(records: dict[str, RequestRecord]) -> Sink:
    """A sink that notes when each token came and how each request ended."""

    def note(result: StepResult) -> None:
        now = time.monotonic()
        for update in result.updates:
            record = records[update.request_id]
            record.event_times += [now] * len(update.token_ids)
            record.output_tokens += len(update.token_ids)
            if update.terminal:
                record.failure = None if update.finish else "refused"

    return note


def _offer(core: EngineCore, requests: Sequence[Request], *, stop_after: float = math.inf) -> dict[str, RequestRecord]:
    """Let each request in at its arrival time and run until all have ended, or ``stop_after`` seconds have passed."""
    records = {r.request_id: RequestRecord(intended=r.arrival_time, failure="unfinished") for r in requests}
    clock = RealClock()
    drive(core, arrivals(core, clock, requests, until=clock.now() + stop_after), clock, _records_into(records))
    return records


def _request(name: str, prompt: Sequence[int], output: int, arrival: float, tenant: str = "default") -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
    return plain_request(name, prompt, sampling, arrival, tenant)


# --- one stream decodes while long prompts arrive


def bench_interference(parts: EngineParts, config: Config, *, prompts: int = 8, length: int = 2000) -> Figures:
    """The largest gap of a running stream while ``prompts`` long prompts arrive at once.

    Arms: the inter-token target of the configuration, the token budget alone, and no chunking at all.
    """
    config = scheduled(config, max_num_seqs=16)
    untimed = scheduled(config, target_itl_ms=0.0)
    unchunked = scheduled(untimed, max_num_batched_tokens=prompts * length + 16)
    target = (config.scheduler.target_itl_ms or 0.0) / 1000
    figures: Figures = {"target_seconds": target}
    for name, arm in {"target": config, "budget_only": untimed, "no_chunking": unchunked}.items():
        gaps, ttft = _interfere(build_core(parts, arm), prompts=prompts, length=length)
        figures[f"{name}_largest_gap_seconds"] = max(gaps)
        figures[f"{name}_median_gap_seconds"] = median(gaps)
        figures[f"{name}_largest_gap_over_target"] = max(gaps) / target if target else None
        figures[f"{name}_last_prompt_ttft_seconds"] = ttft
    return figures


def _interfere(core: EngineCore, *, prompts: int, length: int) -> tuple[list[float], float]:
    """The stream's gaps until the last prompt has its token, and the time to that token."""
    # The step-time model learns from ordinary traffic first: decodes alone, and beside prefills.
    warm_up = enumerate(synthetic_prompts(8, 300, seed=9))
    _offer(core, [_request(f"warm-up {i}", prompt, 24, time.monotonic() + 0.4 * i) for i, prompt in warm_up])
    stream = RequestRecord(intended=time.monotonic())
    late = {f"long {i}": RequestRecord(intended=0.0) for i in range(prompts)}

    def story() -> Source:
        core.add_request(_request("stream", synthetic_prompts(1, 16, seed=1)[0], 4000, stream.intended))
        while len(stream.event_times) < 20:
            yield None
        arrival = time.monotonic()
        for (name, record), prompt in zip(late.items(), synthetic_prompts(prompts, length, seed=2), strict=True):
            record.intended = arrival
            core.add_request(_request(name, prompt, 1, arrival))
        while not all(record.event_times for record in late.values()):
            yield None
        core.abort("stream")
        yield None

    drive(core, story(), RealClock(), _records_into({"stream": stream, **late}))
    return stream.gaps, max(record.ttft or 0.0 for record in late.values())


# --- one tenant floods


def bench_flood(parts: EngineParts, config: Config, *, seconds: float = 40.0, rate: float = 0.8) -> Figures:
    """Tenant B's SLO attainment beside a tenant A that sends 20 times as much, against B alone on half the slots."""
    fair = scheduled(config, scheduling_policy="fair", max_num_seqs=16)
    half, fcfs = scheduled(fair, max_num_seqs=8), scheduled(fair, scheduling_policy="fcfs")
    flood = 20 * rate
    return {
        "seconds": seconds,
        "b_rate": rate,
        "a_rate": flood,
        **_SLO,
        "b_alone_on_half_attainment": _attainment(parts, half, seconds, rate, 0.0),
        "b_beside_flood_attainment": _attainment(parts, fair, seconds, rate, flood),
        "b_beside_flood_fcfs_attainment": _attainment(parts, fcfs, seconds, rate, flood),
    }


def _attainment(parts: EngineParts, config: Config, seconds: float, rate_b: float, rate_a: float) -> float:
    core = build_core(parts, config)
    _offer(core, _tenant_requests("warm-up", 8.0, 1.0, time.monotonic()))
    start = time.monotonic()
    mine = _tenant_requests("b", seconds, rate_b, start)
    others = _tenant_requests("a", seconds, rate_a, start) if rate_a else []
    records = _offer(core, mine + others, stop_after=seconds + 30.0)
    return _good(records[request.request_id] for request in mine) / len(mine)


def _tenant_requests(tenant: str, seconds: float, rate: float, start: float) -> list[Request]:
    seed = sum(tenant.encode())
    due = [moment for moment in poisson_arrivals(int(2 * seconds * rate) + 1, rate, seed=seed) if moment < seconds]
    prompts = synthetic_prompts(len(due), 64, seed=seed)
    return [
        _request(f"{tenant} {index}", prompt, 32, start + moment, tenant)
        for index, (prompt, moment) in enumerate(zip(prompts, due, strict=True))
    ]


# --- five times as much as there is capacity for


def bench_overload(parts: EngineParts, config: Config, *, seconds: float = 60.0, factor: float = 5.0) -> Figures:
    """Goodput at capacity and at ``factor`` times capacity, with and without a limit on the predicted wait."""
    plain = scheduled(config, max_num_seqs=32)
    limited = replace(plain, limits=replace(plain.limits, max_queue_seconds=SLO_TTFT / 2))
    capacity = _capacity(parts, plain)
    at_capacity = _goodput(parts, limited, seconds, capacity)
    overloaded = _goodput(parts, limited, seconds, factor * capacity)
    return {
        "seconds": seconds,
        "capacity_requests_per_second": capacity,
        **_SLO,
        "goodput_at_capacity": at_capacity,
        "goodput_overloaded": overloaded,
        "goodput_overloaded_over_capacity": overloaded / at_capacity if at_capacity else None,
        "goodput_overloaded_without_limit": _goodput(parts, plain, seconds, factor * capacity),
    }


def _capacity(parts: EngineParts, config: Config) -> float:
    """Requests a second of the overload's kind that a full queue is served at."""
    requests = _tenant_requests("c", 8.0, 12.0, time.monotonic() - 8.0)
    begin = time.monotonic()
    _offer(build_core(parts, config), requests)
    return len(requests) / (time.monotonic() - begin)


def _goodput(parts: EngineParts, config: Config, seconds: float, rate: float) -> float:
    """Good answers a second of the arrivals' duration."""
    core = build_core(parts, config)
    _offer(core, _tenant_requests("warm-up", 6.0, rate / 2 if rate < 10 else 4.0, time.monotonic()))
    records = _offer(core, _tenant_requests("o", seconds, rate, time.monotonic()), stop_after=seconds + 20.0)
    return _good(records.values()) / seconds


def _good(records: Iterable[RequestRecord]) -> int:
    return sum(record.meets(SLO_TTFT, SLO_TPOT) for record in records)


# --- one long system prompt, shared


def bench_prefix(parts: EngineParts, config: Config, *, requests: int = 64, shared: int = 1000) -> Figures:
    """Prompt tokens computed for ``requests`` prompts that arrive together and share their first ``shared`` tokens."""
    core = build_core(parts, scheduled(config, max_num_seqs=64))
    beginning = synthetic_prompts(1, shared, seed=5)[0]
    now = time.monotonic()
    prompts = [beginning + rest for rest in synthetic_prompts(requests, 24, seed=6)]
    _offer(core, [_request(f"p {index}", prompt, 4, now) for index, prompt in enumerate(prompts)])
    computed, first = core.stats().prompt_tokens_total, shared + 24
    return {
        "prompt_tokens": requests * first,
        "computed": computed,
        "saved_after_the_first": 1.0 - (computed - first) / ((requests - 1) * first),
        "seconds": time.monotonic() - now,
    }


BENCHES: dict[str, Callable[[EngineParts, Config], Figures]] = {
    "interference": bench_interference,
    "flood": bench_flood,
    "overload": bench_overload,
    "prefix": bench_prefix,
}
