"""Prometheus metrics, made from the engine's latest snapshot at each scrape.

- The engine counts the same turns, ends and refusals that its ledger records, so the two cannot disagree; those of the
  HTTP layer (``at="api"``) too, which it is told of.
- Two things are measured here and are not in the ledger: the time between two tokens of a request as its stream gets
  them, and the fields of requests that had no effect.
- Counters never fall: the snapshot's totals are those of all engines that the server has had.
"""

from collections import Counter as Counts
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ekiden.api.ignored import OTHER
from ekiden.engine.interface import (
    LATENCIES,
    STEP_TOKEN_BOUNDS,
    TOKEN_TIME_BOUNDS,
    Distribution,
    EngineStats,
)
from ekiden.guard.runtime import Guard
from ekiden.state.drafting import NoDrafts
from ekiden.state.request import FinishReason, RefusalReason

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
LABELS: Final = ("model_name", "engine")
ENGINE: Final = "0"

API: Final = "api"
INTAKE: Final = "intake"
UNRECORDED: Final = "unrecorded"
"""Where a request was refused: by the HTTP layer, by the engine's first stage, or by the HTTP layer where no ledger has
it: for its key, or because no engine ran."""

_UNRECORDED_REASONS: Final = (
    RefusalReason.INVALID_API_KEY,
    RefusalReason.INSUFFICIENT_SCOPE,
    RefusalReason.ENGINE_UNAVAILABLE,
)
_GAUGES: Final = (
    ("num_requests_running", "Requests in the running batch.", "num_running"),
    ("num_requests_waiting", "Requests that wait for a place.", "num_waiting"),
)
_COUNTERS: Final = (
    ("num_preemptions", "Sequences moved out of the KV pool.", "preemptions_total"),
    ("prompt_tokens", "Prompt tokens computed.", "prompt_tokens_total"),
    ("generation_tokens", "Tokens generated.", "generation_tokens_total"),
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_cache_queries_total"),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_cache_hits_total"),
    ("spec_decode_num_drafts", "Decode rows that held drafts.", "spec_decode_num_drafts_total"),
    ("spec_decode_num_draft_tokens", "Drafts: tokens guessed ahead.", "spec_decode_num_draft_tokens_total"),
    ("spec_decode_num_accepted_tokens", "Drafts that became tokens.", "spec_decode_num_accepted_tokens_total"),
    ("engine_steps", "Steps of the engine.", "steps_total"),
    ("engine_steps_run_again", "Steps that failed and were run again.", "steps_run_again_total"),
    ("engine_new_sizes", "Passes of a size that was new to the model, which take longer, once.", "new_sizes_total"),
    (
        "engine_turns_unrecorded",
        "Turns that are missing in the ledger, because recording them failed.",
        "turns_unrecorded_total",
    ),
    ("engine_model_seconds", "Time in the model's passes.", "model_seconds_total"),
    ("engine_sampling_seconds", "Time in the sampler.", "sampling_seconds_total"),
    ("engine_host_seconds", "Time of steps outside model and sampler.", "host_seconds_total"),
    ("engine_restarts", "Engines that took the place of one that had ended.", "engine_restarts_total"),
    ("requests_carried_over", "Requests that a new engine went on with.", "requests_carried_over_total"),
    ("requests_ending_engines", "Requests refused because engines end at them.", "requests_ending_engines_total"),
)
_GUARD_COUNTERS: Final[tuple[tuple[str, str, Callable[[Guard], float]], ...]] = (
    ("guard_looks", "How often the guard looked at the ledger.", lambda guard: guard.looks_total),
    ("guard_looks_failed", "Looks of the guard that failed.", lambda guard: guard.failures_total),
    ("guard_seconds", "Processor time of the guard's looks.", lambda guard: guard.seconds_total),
    ("guard_steps", "Steps of the guard's rules, up and down.", lambda guard: guard.steps_total),
    ("guard_pages", "Pages that a channel took.", lambda guard: guard.pager.sent_total),
    ("guard_pages_given_up", "Pages that no try could deliver.", lambda guard: guard.pager.given_up_total),
)
_TENANT_COUNTERS: Final = (
    ("tenant_requests", "Ended requests of a tenant.", "requests"),
    ("tenant_rejections", "Requests of a tenant that the engine did not admit.", "refused"),
    ("tenant_prompt_tokens", "Prompt tokens of a tenant's ended requests.", "prompt_tokens"),
    ("tenant_generation_tokens", "Tokens generated for a tenant's ended requests.", "generation_tokens"),
)
_LATENCIES: Final = {
    "time_to_first_token": "From arrival to the first token.",
    "e2e_request_latency": "From arrival to the end.",
    "request_queue_time": "From arrival to admission.",
    "request_prefill_time": "From admission to the first token.",
    "request_decode_time": "From the first token to the end.",
    "request_time_per_output_token": "Mean time of a token after the first.",
}

Labelled = dict[tuple[str, ...], float]
"""Values by their label values."""


class EngineCollector(Collector):
    """The engine's snapshot as metric families."""

    def __init__(
        self,
        stats: Callable[[], EngineStats],
        healthy: Callable[[], bool],
        model_name: str,
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard
        self.unrecorded = Counts(dict.fromkeys(_UNRECORDED_REASONS, 0))
        self._stats = stats
        self._healthy = healthy
        self._labels = [model_name, ENGINE]

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield self._gauge("engine_healthy", "1 while tokens can move, as /health says.", {(): float(self._healthy())})
        for name, text, field in _GAUGES:
            yield self._gauge(name, text, {(): getattr(stats, field)})
        usage = stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0
        yield self._gauge("kv_cache_usage_perc", "Used part of the KV pool; 1 is full.", {(): usage})
        waiting: Labelled = {(reason,): count for reason, count in sorted(stats.waiting_by_reason.items())}
        yield self._gauge("num_requests_waiting_by_reason", "Waiting requests by reason.", waiting, "reason")
        for name, text, field in _COUNTERS:
            yield self._counter(name, text, {(): getattr(stats, field)})
        yield from self._of_guard()
        step_tokens = Distribution(stats.steps_by_tokens, stats.step_tokens_total)
        yield self._histogram("iteration_tokens_total", "Tokens computed in a step.", STEP_TOKEN_BOUNDS, step_tokens)
        for place, (name, bounds) in enumerate(LATENCIES.items()):
            values = stats.latencies[place] if stats.latencies else Distribution((), 0.0)
            yield self._histogram(f"{name}_seconds", _LATENCIES[name], bounds, values)
        # Zeros are given too: Prometheus sees no increase in a series that starts at one.
        finished: Labelled = {(reason.value,): 0 for reason in FinishReason}
        finished |= {(reason,): count for reason, count in stats.finished_total.items()}
        yield self._counter("request_success", "Finished requests.", finished, "finished_reason")
        undrafted: Labelled = {(reason.value,): 0 for reason in NoDrafts}
        undrafted |= {(reason,): count for reason, count in stats.spec_decode_no_drafts_total.items()}
        yield self._counter("spec_decode_no_drafts", "Decode rows that got no drafts.", undrafted, "reason")
        refused: Labelled = {(at, reason.value): 0 for at in (API, INTAKE) for reason in RefusalReason}
        refused |= {(UNRECORDED, reason.value): count for reason, count in self.unrecorded.items()}
        refused |= {(INTAKE, reason): count for reason, count in stats.refused_total.items()}
        refused |= {(API, reason): count for reason, count in stats.refused_by_door_total.items()}
        yield self._counter("admission_rejections", "Requests that were not admitted.", refused, "at", "reason")
        if stats.tenants:  # those that the tenants file names, and all others together
            for name, text, field in _TENANT_COUNTERS:
                totals: Labelled = {(tenant,): getattr(counts, field) for tenant, counts in stats.tenants.items()}
                yield self._counter(name, text, totals, "tenant")

    def _of_guard(self) -> Iterator[Metric]:
        guard = self._guard
        rungs, failing = (0, False) if guard is None else (guard.rungs, guard.state == "failing")
        yield self._gauge("guard_rungs", "Rungs of the guard's rules that are in force.", {(): float(rungs)})
        yield self._gauge("guard_failing", "1 while the guard cannot look.", {(): float(failing)})
        for name, text, value in _GUARD_COUNTERS:
            yield self._counter(name, text, {(): 0.0 if guard is None else value(guard)})

    def _gauge(self, name: str, text: str, values: Labelled, *labels: str) -> Metric:
        gauge = GaugeMetricFamily(f"ekiden:{name}", text, labels=[*LABELS, *labels])
        for key, value in values.items():
            gauge.add_metric([*self._labels, *key], value)
        return gauge

    def _counter(self, name: str, text: str, values: Labelled, *labels: str) -> Metric:
        counter = CounterMetricFamily(f"ekiden:{name}", text, labels=[*LABELS, *labels])
        for key, value in sorted(values.items()):
            counter.add_metric([*self._labels, *key], value)
        return counter

    def _histogram(self, name: str, text: str, bounds: Sequence[float], values: Distribution) -> Metric:
        """A histogram from counts that the engine keeps by bucket."""
        histogram = HistogramMetricFamily(f"ekiden:{name}", text, labels=LABELS)
        counts = values.counts or (0,) * (len(bounds) + 1)
        names = [*(str(float(bound)) for bound in bounds), "+Inf"]
        buckets = list(zip(names, accumulate(counts), strict=True))
        histogram.add_metric(self._labels, buckets, values.total)
        return histogram


class ApiMetrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(
        self,
        stats: Callable[[], EngineStats],
        healthy: Callable[[], bool],
        model_name: str,
        guard: Guard | None = None,
    ) -> None:
        # No dashboard reads the extra "_created" series.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the package leaves it untyped
        self.registry = CollectorRegistry(auto_describe=False)
        self._engine = EngineCollector(stats, healthy, model_name, guard)
        self.registry.register(self._engine)
        gap = Histogram(
            "ekiden:inter_token_latency_seconds",
            "Between two tokens of a request, as its stream got them.",
            LABELS,
            buckets=TOKEN_TIME_BOUNDS,
            registry=self.registry,
        )
        self.observe_gap = gap.labels(model_name, ENGINE).observe
        """Seconds between two tokens of one request."""
        ignored = Counter(
            "ekiden:ignored_fields",
            "Fields of requests that were taken without effect.",
            (*LABELS, "field"),
            registry=self.registry,
        )
        ignored.labels(model_name, ENGINE, OTHER)
        self.count_ignored: Callable[[str], None] = lambda name: ignored.labels(model_name, ENGINE, name).inc()
        """Called with a field's path from a table of ours, or ``other``."""

    def count_unrecorded(self, reason: RefusalReason) -> None:
        """Count a request that was refused and that no engine is told of."""
        self._engine.unrecorded[reason] += 1

    def render(self) -> bytes:
        return generate_latest(self.registry)
