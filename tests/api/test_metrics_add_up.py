"""The stored ledger of a mixed run, added up, is what ``/metrics`` said at its end: value by value."""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ekiden.config import CacheConfig, Config, LedgerConfig, LimitsConfig, SchedulerConfig, ServerConfig
from ekiden.engine.interface import LATENCIES, LATENCY_BOUNDS, OTHER_TENANTS, STEP_TOKEN_BOUNDS, TOKEN_TIME_BOUNDS
from ekiden.evidence.reader import LedgerReader, decisions_of, end_detail_of, inputs_of, request_detail_of
from ekiden.guardrails.limits import load_tenants
from ekiden.ledger.records import NO_DRAFT_REASONS, REFUSED
from ekiden.state.request import FinishReason
from ekiden.state.runner import CopiesLost
from tests.api.conftest import assert_error
from tests.api.real_core import BLOCK, CONTEXT, RealCore, real_core
from tests.api.scripted import MODEL, VOCAB_SIZE
from tests.api.test_admin import Gate

TENANTS = """
[tenants.acme]
weight = 2.0

[tenants.narrow]
max_num_queued_reqs = 1
"""
FAILING_STEP = 100
SLOTS = 6
Values = dict[str, float]


def config(tmp_path: Path) -> Config:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(TENANTS)
    return Config(
        scheduler=SchedulerConfig(
            max_num_seqs=SLOTS, max_num_batched_tokens=SLOTS + 3 * BLOCK, scheduling_policy="fair"
        ),
        cache=CacheConfig(block_size=BLOCK),
        limits=LimitsConfig(max_num_queued_reqs=40),
        tenants=load_tenants(str(tenants)),
        server=ServerConfig(tenant_header="x-tenant"),
        ledger=LedgerConfig(ledger_dir=str(tmp_path / "ledger")),
    )


class FailingGate(Gate):
    """Lets steps through one by one at first, and fails one of them later."""

    def __call__(self, step: int) -> None:
        super().__call__(step)
        if step == FAILING_STEP:
            raise CopiesLost("planted")


class Load:
    """A mixed load over HTTP: several tenants, shared prompts, every way to end and several ways to be refused."""

    def __init__(self, core: RealCore, gate: Gate) -> None:
        self.core = core
        self.gate = gate

    async def run(self) -> None:
        shared = "the same beginning of many prompts, longer than two blocks " * 2
        calls = [
            self.core.complete(f"{shared}{index}", max_tokens=120 + 10 * index, ignore_eos=True, n=1 + index % 3)
            for index in range(8)
        ]
        calls += [self.post("acme", f"{index} alone {shared}", max_tokens=40) for index in range(8)]
        calls += [self.post("narrow", shared, max_tokens=9) for _ in range(4)]
        calls += [self.post("acme", shared, max_tokens=200, stop_token_ids=list(range(VOCAB_SIZE // 2)))]
        held = [asyncio.create_task(call) for call in calls]
        await self.arrived(held)
        await self.gate.step_until(lambda: self.core.engine.stats().num_running == SLOTS)
        late = self.post("somebody", shared, deadline_ms=30, max_tokens=300, ignore_eos=True)
        held.append(asyncio.create_task(late))
        await self.arrived(held)
        # More than the queue holds, all of them before the next step begins; they are answered, one way or another.
        flood = [self.post("flood", f"{index}", max_tokens=30, ignore_eos=True) for index in range(60)]
        held += [asyncio.create_task(call) for call in flood]
        await self.arrived(held)
        await asyncio.sleep(0.03)  # the deadline passes while no slot is free
        self.gate.open.set()
        await asyncio.gather(*held, self.leave(), self.be_paused())
        await self.be_refused()

    async def arrived(self, calls: list[asyncio.Task[httpx.Response]]) -> None:
        """Until all are in the engine's hands, or answered already."""
        in_flight = self.core.app.state.doors.generation.flight.calls
        async with asyncio.timeout(60):
            while len(in_flight) + sum(call.done() for call in calls) < len(calls):
                await asyncio.sleep(0.002)

    def post(self, tenant: str, prompt: object, *, deadline_ms: int | None = None, **fields: object):
        headers = {"x-tenant": tenant}
        if deadline_ms is not None:
            headers["x-request-deadline-ms"] = str(deadline_ms)
        body = {"model": MODEL, "prompt": prompt, **fields}
        return self.core.http.post("/v1/completions", json=body, headers=headers)

    async def leave(self) -> None:
        """A client that goes away in the middle of its stream."""
        body = {"model": MODEL, "prompt": "I must go", "stream": True, "max_tokens": 500, "ignore_eos": True}
        while True:  # until it is one that the full queue does not refuse
            async with self.core.http.stream("POST", "/v1/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        return
            await asyncio.sleep(0.01)

    async def be_paused(self) -> None:
        """A request that an operator takes out of the running and lets go on: its blocks are dropped meanwhile."""
        body = {"model": MODEL, "prompt": "p" * 70, "stream": True, "max_tokens": 150, "ignore_eos": True}
        while True:
            async with self.core.http.stream("POST", "/v1/completions", json=body) as response:
                if response.status_code != 200:
                    await asyncio.sleep(0.01)
                    continue
                request_id = response.headers["x-ekiden-request-id"]
                await self.core.engine.pause(request_id, "test")
                while not self.core.engine.stats().num_paused and self.core.engine.stats().num_running:
                    await asyncio.sleep(0.001)
                await self.core.engine.resume(request_id, "test")
                await response.aread()
                return

    async def be_refused(self) -> None:
        assert_error(await self.core.complete(""), 400, code="prompt_empty")
        assert_error(await self.core.complete([1] * CONTEXT), 400, code="context_length_exceeded")
        assert_error(await self.core.complete([VOCAB_SIZE]), 400, code="token_out_of_vocabulary")
        assert_error(await self.core.complete([1] * 700, max_tokens=5), 400, code="exceeds_kv_cache")


async def scraped(core: RealCore) -> Values:
    values: Values = {}
    for family in text_string_to_metric_families((await core.http.get("/metrics")).text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == MODEL
            assert labels.pop("engine") == "0"
            told = "".join(f" {name}={value}" for name, value in sorted(labels.items()))
            values[sample.name.removeprefix("ekiden:") + told] = sample.value
    return values


# --- the ledger, added up


def added_up(reader: LedgerReader) -> Values:
    return counters(reader) | latencies(reader) | tenants(reader)


def counters(reader: LedgerReader) -> Values:
    turns = list(reader.all_turns())
    requests = {row.request: row for row in reader.all_requests()}
    ended = [end for end in reader.all_ends() if end.reason != REFUSED]
    computed = [
        row for row in turns if row.decode_rows + row.prefill_tokens + row.swapped and inputs_of(row).failure is None
    ]
    values: Values = {
        "engine_steps_total": len(computed),
        "prompt_tokens_total": sum(row.prefill_tokens for row in computed),
        "generation_tokens_total": sum(row.tokens for row in turns),
        "num_preemptions_total": sum(end.preemptions for end in ended),
        "prefix_cache_queries_total": sum(requests[e.request].prompt_tokens for e in ended if e.admitted is not None),
        "prefix_cache_hits_total": sum(end.cached_tokens for end in ended),
    }
    drafts = [count for row in computed for _, count in decisions_of(row).drafts]
    drafted = [{request for request, _ in decisions_of(row).drafts} for row in computed]
    values |= {
        "spec_decode_num_drafts_total": len(drafts),
        "spec_decode_num_draft_tokens_total": sum(drafts),
        "spec_decode_num_accepted_tokens_total": sum(
            max(0, guess.tokens - 1)
            for row, requests_with in zip(computed, drafted, strict=True)
            for guess in inputs_of(row).drafts
            if guess.request in requests_with
        ),
    }
    refused_drafts = Counter[str]()
    for end in ended:
        if (totals := end_detail_of(end).drafting) is not None:
            refused_drafts.update({NO_DRAFT_REASONS[code].value: count for code, count in totals.refused})
    values |= {f"spec_decode_no_drafts_total reason={reason}": count for reason, count in refused_drafts.items()}
    # The ledger says some things twice; it must agree with itself.
    assert values["generation_tokens_total"] == sum(end.output_tokens for end in ended)
    assert values["num_preemptions_total"] == sum(len(decisions_of(row).victims) for row in turns)
    for reason, count in Counter(end.reason for end in ended).items():
        values[f"request_success_total finished_reason={reason}"] = count
    refused = Counter(
        ("api" if request_detail_of(row).by_door else "intake", row.refusal) for row in requests.values() if row.refusal
    )
    for (at, refusal), count in refused.items():
        values[f"admission_rejections_total at={at} reason={refusal}"] = count
    tokens = [row.decode_rows + row.prefill_tokens for row in computed]
    return values | histogram("iteration_tokens_total", STEP_TOKEN_BOUNDS, tokens)


def latencies(reader: LedgerReader) -> Values:
    """The recorded times in seconds of the engine's clock, exactly as the engine read them."""
    requests = {row.request: row for row in reader.all_requests()}
    seen: dict[str, list[float]] = {name: [] for name in LATENCIES}

    def seconds(micros: int) -> float:
        return (reader.header.clock_base + micros) / 1e6

    for end in reader.all_ends():
        if end.reason == REFUSED:
            continue
        arrival, at = request_detail_of(requests[end.request]).arrival, seconds(end.at)
        seen["e2e_request_latency"].append(at - arrival)
        if end.admitted is not None:
            seen["request_queue_time"].append(seconds(end.admitted) - arrival)
        if end.first_token is None or end.admitted is None:
            continue
        first = seconds(end.first_token)
        seen["time_to_first_token"].append(first - arrival)
        seen["request_prefill_time"].append(first - seconds(end.admitted))
        seen["request_decode_time"].append(at - first)
        if end.output_tokens > 1:
            seen["request_time_per_output_token"].append((at - first) / (end.output_tokens - 1))
    values: Values = {}
    for name, observed in seen.items():
        bounds = TOKEN_TIME_BOUNDS if name == "request_time_per_output_token" else LATENCY_BOUNDS
        values |= histogram(f"{name}_seconds", bounds, observed)
    return values


def histogram(name: str, bounds: tuple[float, ...], observed: Iterable[float]) -> Values:
    observed = list(observed)
    places = Counter(bisect_left(bounds, value) for value in observed)
    values: Values = {f"{name}_count": len(observed), f"{name}_sum": sum(observed)}
    for place, bound in enumerate([*map(float, bounds), float("inf")]):
        told = "+Inf" if bound == float("inf") else str(bound)
        values[f"{name}_bucket le={told}"] = sum(places[lower] for lower in range(place + 1))
    return values


def tenants(reader: LedgerReader) -> Values:
    named = set(reader.header.tenants)
    ends = {end.request: end for end in reader.all_ends()}
    used: dict[str, Counter[str]] = {name: Counter() for name in (*named, OTHER_TENANTS)}
    for row in reader.all_requests():
        counts, end = used[row.tenant if row.tenant in named else OTHER_TENANTS], ends[row.request]
        if row.refusal is not None:
            counts["rejections"] += 1
            continue
        counts["requests"] += 1
        counts["prompt_tokens"] += row.prompt_tokens
        counts["generation_tokens"] += end.output_tokens
    names = ("requests", "rejections", "prompt_tokens", "generation_tokens")
    return {f"tenant_{name}_total tenant={tenant}": counts[name] for tenant, counts in used.items() for name in names}


async def test_the_ledger_adds_up_to_the_metrics(tmp_path: Path):
    gate = FailingGate()
    async with real_core(config(tmp_path), num_blocks=40, before_step=gate, live=True, record=True) as core:
        try:
            await Load(core, gate).run()
        finally:
            gate.open.set()
        await core.clean()
        values = await scraped(core)
        path = core.engine.ledger_path
        assert path is not None
    with LedgerReader(path) as reader:
        expected = added_up(reader)
        ends = reader.all_ends()
    happened(expected)
    assert {key: values.get(key) for key in expected} == {
        key: pytest.approx(v, abs=1e-6) for key, v in expected.items()
    }
    # Nothing is counted there that the ledger does not know.
    beside = {key for key in values.keys() - expected.keys() if "_total" in key and "seconds_total" not in key}
    assert not {key for key in beside if values[key]}
    # Tokens of a client that left were not handed to it, so their gaps were not seen.
    gaps = {end.reason: 0 for end in ends}
    for end in ends:
        gaps[end.reason] += max(0, end.output_tokens - 1)
    seen = values["inter_token_latency_seconds_count"]
    assert sum(gaps.values()) - gaps["abort"] <= seen <= sum(gaps.values())


def happened(expected: Values) -> None:
    """The load had what it was made for; otherwise nothing would have been compared."""
    for key in (
        # When a request is abstained from depends on how fast this machine is; tests/unit/guardrails adds those up.
        *(f"request_success_total finished_reason={reason.value}" for reason in FinishReason if reason != "abstained"),
        *(
            f"admission_rejections_total at=intake reason={reason}"
            for reason in ("queue_full_requests", "tenant_queue_full", "exceeds_kv_cache")
        ),
        *(
            f"admission_rejections_total at=api reason={reason}"
            for reason in ("prompt_empty", "context_length_exceeded", "token_out_of_vocabulary")
        ),
        "num_preemptions_total", "prefix_cache_hits_total", "time_to_first_token_seconds_count",
        "spec_decode_num_draft_tokens_total",
        "tenant_requests_total tenant=acme", "tenant_rejections_total tenant=narrow",
        f"tenant_requests_total tenant={OTHER_TENANTS}",
    ):  # fmt: skip
        assert expected.get(key, 0) > 0, key
    admitted, first = expected["request_queue_time_seconds_count"], expected["time_to_first_token_seconds_count"]
    assert expected["e2e_request_latency_seconds_count"] > admitted >= first, "some never got a place"


async def test_every_metric_of_the_conventions_is_there(tmp_path: Path):
    async with real_core(config(tmp_path), record=True) as core:
        assert (await core.complete("hello", max_tokens=3, ignore_eos=True)).status_code == 200
        await core.clean()
        text = (await core.http.get("/metrics")).text
    families = {family.name: family.type for family in text_string_to_metric_families(text)}
    names = {name.removeprefix("ekiden:"): kind for name, kind in families.items()}
    gauges = ("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc")
    counts = (
        "num_preemptions", "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits",
        "request_success", "admission_rejections", "spec_decode_num_drafts", "spec_decode_num_draft_tokens",
        "spec_decode_num_accepted_tokens", "spec_decode_no_drafts",
    )  # fmt: skip
    histograms = (
        "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
        "request_decode_time_seconds", "iteration_tokens_total",
    )  # fmt: skip
    expected = {"gauge": gauges, "counter": counts, "histogram": histograms}
    assert {name: names.get(name) for kind in expected.values() for name in kind} == {
        name: kind for kind, listed in expected.items() for name in listed
    }
