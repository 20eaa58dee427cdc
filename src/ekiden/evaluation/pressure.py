"""How the engine behaves when it is pressed: the same engine and model, one premise changed at a time.

Each bench returns a flat table of its arms, with the limit that the figure is held against beside it. Arrivals are an
open loop from intended times; latencies count from those. An answer is good when its first token came within
``Slo.ttft`` and its mean time per further token stayed within ``Slo.tpot``; refused and failed ones are bad.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ekiden.build.core import build_core
from ekiden.config import Config
from ekiden.engine.engine_core import EngineCore
from ekiden.engine.parts import EngineParts
from ekiden.evaluation.workload import poisson_arrivals, synthetic_prompts
from ekiden.state.request import Finish, Refusal, Request
from ekiden.state.sampling_params import SamplingParams

Figures = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Seconds to the first token, and mean seconds for each further one."""

    ttft: float
    tpot: float


@dataclass(slots=True)
class Timeline:
    """When each token of a request came, on the engine's clock, and how it ended."""

    request: Request
    token_times: list[float] = field(default_factory=list)
    finish: Finish | None = None
    refusal: Refusal | None = None

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.token_times, self.token_times[1:], strict=False)]

    def good(self, slo: Slo) -> bool:
        times = self.token_times
        if self.finish is None or not times or times[0] - self.request.arrival_time > slo.ttft:
            return False
        return len(times) < 2 or (times[-1] - times[0]) / (len(times) - 1) <= slo.tpot


def drive(core: EngineCore, requests: Sequence[Request], *, stop_after: float | None = None) -> dict[str, Timeline]:
    """Let each request in at its arrival time and run until all have ended, or ``stop_after`` seconds have passed."""
    timelines = {request.request_id: Timeline(request) for request in requests}
    todo = deque(sorted(requests, key=lambda request: request.arrival_time))
    begin = time.monotonic()
    while todo or core.has_work:
        now = time.monotonic()
        if stop_after is not None and now - begin > stop_after:
            break
        while todo and todo[0].arrival_time <= now:
            core.add_request(todo.popleft())
        result = core.step()
        now = time.monotonic()
        for update in result.updates:
            timeline = timelines[update.request_id]
            timeline.token_times += [now] * len(update.token_ids)
            timeline.finish = update.finish or timeline.finish
            timeline.refusal = update.refusal or timeline.refusal
        if not result.computed and todo and not core.has_work:
            time.sleep(max(0.0, todo[0].arrival_time - time.monotonic()))
    return timelines


def _request(name: str, prompt: Sequence[int], output: int, arrival: float, tenant: str = "default") -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
    return Request(
        request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling, arrival_time=arrival, tenant=tenant
    )


def _with(config: Config, **scheduler: object) -> Config:
    return replace(config, scheduler=replace(config.scheduler, **scheduler))  # type: ignore[arg-type]


# --- one stream decodes while long prompts arrive


def bench_interference(parts: EngineParts, config: Config, *, prompts: int = 8, length: int = 2000) -> Figures:
    """The largest gap of a running stream while ``prompts`` long prompts arrive at once.

    Arms: the inter-token target of the configuration, the token budget alone, and no chunking at all.
    """
    budget = prompts * length + config.scheduler.max_num_seqs
    arms = {
        "target": _with(config, max_num_seqs=16),
        "budget_only": _with(config, max_num_seqs=16, target_itl_ms=0.0),
        "no_chunking": _with(config, max_num_seqs=16, target_itl_ms=0.0, max_num_batched_tokens=budget),
    }
    target = (config.scheduler.target_itl_ms or 0.0) / 1000
    figures: Figures = {"target_seconds": target}
    for name, arm in arms.items():
        stream, ttft = _interfere(build_core(parts, arm), prompts=prompts, length=length)
        gaps = sorted(stream.gaps)
        figures[f"{name}_largest_gap_seconds"] = gaps[-1]
        figures[f"{name}_median_gap_seconds"] = gaps[len(gaps) // 2]
        figures[f"{name}_largest_gap_over_target"] = gaps[-1] / target if target else None
        figures[f"{name}_last_prompt_ttft_seconds"] = ttft
    return figures


def _interfere(core: EngineCore, *, prompts: int, length: int) -> tuple[Timeline, float]:
    """The stream's timeline, from the arrival of the prompts on, and the time to the last prompt's token."""
    # The step-time model learns from ordinary traffic first: decodes alone, and beside prefills.
    warm_up = [
        _request(f"warm-up {i}", prompt, 24, time.monotonic() + 0.4 * i)
        for i, prompt in enumerate(synthetic_prompts(8, 300, seed=9))
    ]
    drive(core, warm_up)
    start = time.monotonic()
    stream = _request("stream", synthetic_prompts(1, 16, seed=1)[0], 4000, start)
    core.add_request(stream)
    timeline = Timeline(stream)
    while len(timeline.token_times) < 20:
        core.step()
        timeline.token_times.append(time.monotonic())
    arrival = time.monotonic()
    waiting = {f"long {i}" for i in range(prompts)}
    for name, prompt in zip(sorted(waiting), synthetic_prompts(prompts, length, seed=2), strict=True):
        core.add_request(_request(name, prompt, 1, arrival))
    last = arrival
    while waiting:
        result = core.step()
        last = time.monotonic()
        for update in result.updates:
            if update.request_id == "stream":
                timeline.token_times.append(last)
            elif update.terminal:
                waiting.discard(update.request_id)
    core.abort("stream")
    core.step()
    return timeline, last - arrival


# --- one tenant floods


def bench_flood(parts: EngineParts, config: Config, *, seconds: float = 40.0, rate: float = 0.8) -> Figures:
    """Tenant B's SLO attainment beside a tenant A that sends 20 times as much, against B alone on half the slots."""
    slots, slo = 16, Slo(ttft=4.0, tpot=0.4)
    half = _with(config, scheduling_policy="fair", max_num_seqs=slots // 2)
    whole = _with(config, scheduling_policy="fair", max_num_seqs=slots)
    figures: Figures = {
        "seconds": seconds,
        "b_rate": rate,
        "a_rate": 20 * rate,
        "slo_ttft": slo.ttft,
        "slo_tpot": slo.tpot,
    }
    figures["b_alone_on_half_attainment"] = _attainment(parts, half, seconds, rate, 0.0, slo)
    figures["b_beside_flood_attainment"] = _attainment(parts, whole, seconds, rate, 20 * rate, slo)
    fcfs = _with(config, scheduling_policy="fcfs", max_num_seqs=slots)
    figures["b_beside_flood_fcfs_attainment"] = _attainment(parts, fcfs, seconds, rate, 20 * rate, slo)
    return figures


def _attainment(parts: EngineParts, config: Config, seconds: float, rate_b: float, rate_a: float, slo: Slo) -> float:
    core = build_core(parts, config)
    drive(core, _tenant_requests("warm-up", 8.0, 1.0, time.monotonic()))
    start = time.monotonic()
    requests = _tenant_requests("b", seconds, rate_b, start)
    if rate_a:
        requests += _tenant_requests("a", seconds, rate_a, start)
    timelines = drive(core, requests, stop_after=seconds + 30.0)
    mine = [timeline for timeline in timelines.values() if timeline.request.tenant == "b"]
    return sum(timeline.good(slo) for timeline in mine) / len(mine)


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
    slo = Slo(ttft=4.0, tpot=0.4)
    plain = _with(config, max_num_seqs=32)
    limited = replace(plain, limits=replace(plain.limits, max_queue_seconds=slo.ttft / 2))
    capacity = _capacity(parts, plain)
    figures: Figures = {
        "seconds": seconds, "capacity_requests_per_second": capacity, "slo_ttft": slo.ttft, "slo_tpot": slo.tpot
    }  # fmt: skip
    at_capacity = _goodput(parts, limited, seconds, capacity, slo)
    overloaded = _goodput(parts, limited, seconds, factor * capacity, slo)
    unlimited = _goodput(parts, plain, seconds, factor * capacity, slo)
    return figures | {
        "goodput_at_capacity": at_capacity,
        "goodput_overloaded": overloaded,
        "goodput_overloaded_over_capacity": overloaded / at_capacity if at_capacity else None,
        "goodput_overloaded_without_limit": unlimited,
    }


def _capacity(parts: EngineParts, config: Config) -> float:
    """Requests a second of the overload's kind that a full queue is served at."""
    requests = _tenant_requests("c", 8.0, 12.0, time.monotonic() - 8.0)
    begin = time.monotonic()
    drive(build_core(parts, config), requests)
    return len(requests) / (time.monotonic() - begin)


def _goodput(parts: EngineParts, config: Config, seconds: float, rate: float, slo: Slo) -> float:
    """Good answers a second of the arrivals' duration."""
    core = build_core(parts, config)
    drive(core, _tenant_requests("warm-up", 6.0, rate / 2 if rate < 10 else 4.0, time.monotonic()))
    timelines = drive(core, _tenant_requests("o", seconds, rate, time.monotonic()), stop_after=seconds + 20.0)
    return sum(timeline.good(slo) for timeline in timelines.values()) / seconds


# --- one long system prompt, shared


def bench_prefix(parts: EngineParts, config: Config, *, requests: int = 64, shared: int = 1000) -> Figures:
    """Prompt tokens computed for ``requests`` prompts that arrive together and share their first ``shared`` tokens."""
    core = build_core(parts, _with(config, max_num_seqs=64))
    beginning = synthetic_prompts(1, shared, seed=5)[0]
    now = time.monotonic()
    prompts = [beginning + rest for rest in synthetic_prompts(requests, 24, seed=6)]
    drive(core, [_request(f"p {index}", prompt, 4, now) for index, prompt in enumerate(prompts)])
    stats = core.stats()
    first = shared + 24
    total = requests * first
    return {
        "prompt_tokens": total,
        "computed": stats.prompt_tokens_total,
        "saved_after_the_first": 1.0 - (stats.prompt_tokens_total - first) / (total - first),
        "seconds": time.monotonic() - now,
    }
