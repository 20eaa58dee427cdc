"""How the engine behaves when it is pressed: the same engine and model, one premise changed at a time.

Each bench returns a flat table of its arms, with the limit that the figure is held against beside it. Arrivals are an
open loop from intended times; latencies count from those. An answer is good when it is whole, its first token came
within ``SLO_TTFT`` and its mean time per further token stayed within ``SLO_TPOT``.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from ekiden.build.core import build_core
from ekiden.config import Config
from ekiden.engine.driver import RealClock, Source, drive
from ekiden.engine.parts import EngineParts
from ekiden.evaluation.benches.engine import scheduled
from ekiden.evaluation.charts.trace import Work
from ekiden.evaluation.load.engine_subject import EngineSubject, warm_up
from ekiden.evaluation.load.requests import Collector, requests_of
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.results import ArmRun
from ekiden.evaluation.workloads.offer import Kind, Offer, Workload
from ekiden.evaluation.workloads.realise import realise
from ekiden.evaluation.workloads.synthetic import poisson_arrivals
from ekiden.measure.figures import Figures, RequestRecord
from ekiden.measure.percentiles import median

SLO_TTFT, SLO_TPOT = 4.0, 0.4
OBJECTIVES = Objectives(ttft=SLO_TTFT, tpot=SLO_TPOT)
_SLO: Figures = {"slo_ttft": SLO_TTFT, "slo_tpot": SLO_TPOT}


def _workload(name: str, seconds: float, offers: Iterable[Offer]) -> Workload:
    in_order = tuple(sorted(offers, key=lambda offer: offer.at))
    return Workload(name=name, kind=Kind.HARD, seconds=seconds, offers=in_order, made={"source": name}, sources={})


def _offer(name: str, prompt_tokens: int, output: int, at: float = 0.0, **rest: Any) -> Offer:
    return Offer(id=name, at=at, prompt_tokens=prompt_tokens, output_tokens=output, max_tokens=output, **rest)


def _serve(parts: EngineParts, config: Config, workload: Workload) -> ArmRun:
    """A fresh engine serves the workload; what is left when no more answer can be good is cut."""
    subject = EngineSubject(parts, config, objectives=OBJECTIVES, prompts=_prompts_for(parts), cut=True)
    return subject.serve(workload)


def _prompts_for(parts: EngineParts) -> Callable[[Workload], Sequence[Sequence[int]]]:
    size, context = parts.card.vocab_size, parts.card.max_model_len
    return lambda workload: realise(workload, max_model_len=context, vocab_size=size).prompts


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
        gaps, ttft = _interfere(parts, arm, prompts=prompts, length=length)
        figures[f"{name}_largest_gap_seconds"] = max(gaps)
        figures[f"{name}_median_gap_seconds"] = median(gaps)
        figures[f"{name}_largest_gap_over_target"] = max(gaps) / target if target else None
        figures[f"{name}_last_prompt_ttft_seconds"] = ttft
    return figures


def _interfere(parts: EngineParts, config: Config, *, prompts: int, length: int) -> tuple[list[float], float]:
    """The stream's gaps until the last prompt has its token, and the time to that token."""
    stream, late = _offer("stream", 16, 4000), [_offer(f"long {i}", length, 1) for i in range(prompts)]
    workload, clock = _workload("interference", 1.0, [stream, *late]), RealClock()
    core = build_core(parts, config)
    # The step-time model learns from ordinary traffic first: decodes alone, and beside prefills.
    warm_up(core, parts, prompt_tokens=300, output_tokens=24)
    token_ids, start = _prompts_for(parts)(workload), clock.now()
    collector = Collector(workload, token_ids, start=start, now=clock.now)
    first, *others = requests_of(workload, token_ids, start)
    arrived = 0.0

    def story() -> Source:
        nonlocal arrived
        core.add_request(first)
        while len(collector.record("stream").event_times) < 20:
            yield None
        arrived = clock.now()
        for request in others:
            core.add_request(msgspec.structs.replace(request, arrival_time=arrived))
        while not all(collector.record(offer.id).event_times for offer in late):
            yield None
        core.abort("stream")
        yield None

    drive(core, story(), clock, collector)
    last = max(collector.record(offer.id).event_times[0] for offer in late)
    return collector.record("stream").gaps, last - (arrived - start)


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
    others = _tenant_offers("a", seconds, rate_a) if rate_a else []
    run = _serve(parts, config, _workload("flood", seconds, _tenant_offers("b", seconds, rate_b) + others))
    mine = [result.record for result in run.results if result.tenant == "b"]
    return _good(mine) / len(mine)


def _tenant_offers(tenant: str, seconds: float, rate: float) -> list[Offer]:
    seed = sum(tenant.encode())
    due = [moment for moment in poisson_arrivals(int(2 * seconds * rate) + 1, rate, seed=seed) if moment < seconds]
    return [_offer(f"{tenant} {index}", 64, 32, moment, tenant=tenant) for index, moment in enumerate(due)]


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
    offers = [_offer(f"c {index}", 64, 32) for index in range(96)]
    patient = Objectives(ttft=600.0, tpot=60.0)
    run = EngineSubject(parts, config, objectives=patient, prompts=_prompts_for(parts)).serve(
        _workload("capacity", 1.0, offers)
    )
    return len(offers) / run.seconds


def _goodput(parts: EngineParts, config: Config, seconds: float, rate: float) -> float:
    """Good answers a second of the arrivals' duration."""
    run = _serve(parts, config, _workload("overload", seconds, _tenant_offers("o", seconds, rate)))
    return _good(result.record for result in run.results) / seconds


def _good(records: Iterable[RequestRecord]) -> int:
    return sum(record.meets(SLO_TTFT, SLO_TPOT) for record in records)


# --- one long system prompt, shared


def bench_prefix(parts: EngineParts, config: Config, *, requests: int = 64, shared: int = 1000) -> Figures:
    """Prompt tokens computed for ``requests`` prompts that arrive together and share their first ``shared`` tokens."""
    first = shared + 24
    offers = [
        _offer(f"p {index}", first, 4, prefix_group="system prompt", prefix_tokens=shared) for index in range(requests)
    ]
    subject = EngineSubject(
        parts, scheduled(config, max_num_seqs=64), objectives=OBJECTIVES, prompts=_prompts_for(parts)
    )
    run = subject.serve(_workload("prefix", 1.0, offers))
    rows = (row for step in subject.last_steps for row in step.rows)
    computed = sum(row.computed for row in rows if row.work is Work.PREFILL)
    return {
        "prompt_tokens": requests * first,
        "computed": computed,
        "saved_after_the_first": 1.0 - (computed - first) / ((requests - 1) * first),
        "seconds": run.seconds,
    }


BENCHES: dict[str, Callable[[EngineParts, Config], Figures]] = {
    "interference": bench_interference,
    "flood": bench_flood,
    "overload": bench_overload,
    "prefix": bench_prefix,
}
