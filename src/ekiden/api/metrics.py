"""Prometheus metrics, made from the engine's latest snapshot at each scrape.

- The engine counts the same turns, ends and refusals that its ledger records, so the two cannot disagree; those of the
  HTTP layer (``at="api"``) too, which it is told of.
- One thing is measured here and is not in the ledger: the time between two tokens of a request as its stream gets them.
- Counters never fall: when the engine restarts and counts from zero again, what was counted before is kept.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ekiden.engine.interface import (
    LATENCIES,
    LATENCY_BOUNDS,
    STEP_TOKEN_BOUNDS,
    TOKEN_TIME_BOUNDS,
    Distribution,
    EngineStats,
    TenantTotals,
)
from ekiden.state.request import FinishReason, RefusalReason

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
LABELS: Final = ("model_name", "engine")
ENGINE: Final = "0"

API: Final = "api"
INTAKE: Final = "intake"
"""Where a request was refused: by the HTTP layer, or by the engine's first stage."""

Labelled = dict[tuple[str, ...], int]
"""Counts by their label values."""

_ABOUT: Final = {
    "time_to_first_token": "From arrival to the first token.",
    "e2e_request_latency": "From arrival to the end.",
    "request_queue_time": "From arrival to admission.",
    "request_prefill_time": "From admission to the first token.",
    "request_decode_time": "From the first token to the end.",
    "request_time_per_output_token": "Mean time of a token after the first.",
}


class Growing:
    """A counter's value over engine restarts: when the engine's value falls, it has started from zero again."""

    __slots__ = ("_before", "_last")

    def __init__(self) -> None:
        self._before = 0.0
        self._last = 0.0

    def update(self, value: float) -> float:
        if value < self._last:
            self._before += self._last
        self._last = value
        return self._before + value


class EngineCollector(Collector):
    """The engine's snapshot as metric families."""

    def __init__(self, stats: Callable[[], EngineStats], healthy: Callable[[], bool], model_name: str) -> None:
        self._stats = stats
        self._healthy = healthy
        self._labels = [model_name, ENGINE]
        self._growing: dict[str, Growing] = {}

    def describe(self) -> Iterable[Metric]:
        return []

    def _count(self, key: str, value: float) -> float:
        return self._growing.setdefault(key, Growing()).update(value)

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield from self._gauges(stats)
        yield from self._counters(stats)
        step_tokens = Distribution(stats.steps_by_tokens, stats.step_tokens_total)
        yield self._histogram("iteration_tokens_total", "Tokens computed in a step.", STEP_TOKEN_BOUNDS, step_tokens)
        for place, name in enumerate(LATENCIES):
            bounds = TOKEN_TIME_BOUNDS if name == LATENCIES[-1] else LATENCY_BOUNDS
            values = stats.latencies[place] if stats.latencies else Distribution((), 0.0)
            yield self._histogram(f"{name}_seconds", _ABOUT[name], bounds, values)
        finished: Labelled = {(reason.value,): 0 for reason in FinishReason}
        finished |= {(reason,): count for reason, count in stats.finished_total.items()}
        yield self._by("request_success", "Finished requests.", ("finished_reason",), finished)
        refused: Labelled = {(at, reason.value): 0 for at in (API, INTAKE) for reason in RefusalReason}
        refused |= {(INTAKE, reason): count for reason, count in stats.refused_total.items()}
        refused |= {(API, reason): count for reason, count in stats.refused_by_door_total.items()}
        yield self._by("admission_rejections", "Requests that were not admitted.", ("at", "reason"), refused)
        if stats.tenants:
            yield from self._tenants(stats.tenants)

    def _gauges(self, stats: EngineStats) -> Iterator[Metric]:
        usage = stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0
        for name, text, value in (
            ("engine_healthy", "1 while tokens can move, as /health says.", float(self._healthy())),
            ("num_requests_running", "Requests in the running batch.", stats.num_running),
            ("num_requests_waiting", "Requests that wait for a place.", stats.num_waiting),
            ("kv_cache_usage_perc", "Used part of the KV pool; 1 is full.", usage),
        ):
            gauge = GaugeMetricFamily(f"ekiden:{name}", text, labels=LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        waiting = GaugeMetricFamily(
            "ekiden:num_requests_waiting_by_reason", "Waiting requests by reason.", labels=[*LABELS, "reason"]
        )
        for reason, count in sorted(stats.waiting_by_reason.items()):
            waiting.add_metric([*self._labels, reason], count)
        yield waiting

    def _counters(self, stats: EngineStats) -> Iterator[Metric]:
        for name, text, value in (
            ("num_preemptions", "Sequences moved out of the KV pool.", stats.preemptions_total),
            ("prompt_tokens", "Prompt tokens computed.", stats.prompt_tokens_total),
            ("generation_tokens", "Tokens generated.", stats.generation_tokens_total),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_cache_queries_total),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_cache_hits_total),
            ("engine_steps", "Steps of the engine.", stats.steps_total),
            ("engine_model_seconds", "Time in the model's passes.", stats.model_seconds_total),
            ("engine_sampling_seconds", "Time in the sampler.", stats.sampling_seconds_total),
            ("engine_host_seconds", "Time of steps outside model and sampler.", stats.host_seconds_total),
        ):
            counter = CounterMetricFamily(f"ekiden:{name}", text, labels=LABELS)
            counter.add_metric(self._labels, self._count(name, value))
            yield counter

    def _histogram(self, name: str, text: str, bounds: Sequence[float], values: Distribution) -> Metric:
        """A histogram from counts that the engine keeps by bucket."""
        histogram = HistogramMetricFamily(f"ekiden:{name}", text, labels=LABELS)
        counts = values.counts or (0,) * (len(bounds) + 1)
        total = 0.0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(float, bounds), math.inf), counts, strict=True):
            total += self._count(f"{name}/{bound}", count)
            buckets.append(("+Inf" if bound == math.inf else str(bound), total))
        histogram.add_metric(self._labels, buckets, self._count(f"{name}/sum", values.total))
        return histogram

    def _by(self, name: str, text: str, labels: tuple[str, ...], values: Labelled) -> Metric:
        """``values`` has zeros too: Prometheus sees no increase in a series that starts at one."""
        counter = CounterMetricFamily(f"ekiden:{name}", text, labels=[*LABELS, *labels])
        # Label values seen before are kept: a series must not vanish when the engine restarts.
        known = {tuple(key.split("/")[1:]) for key in self._growing if key.startswith(f"{name}/")}
        for key in sorted(known | set(values)):
            count = self._count("/".join((name, *key)), values.get(key, 0))
            counter.add_metric([*self._labels, *key], count)
        return counter

    def _tenants(self, tenants: dict[str, TenantTotals]) -> Iterator[Metric]:
        """For the tenants that the tenants file names, and all others together."""
        for field, name, text in (
            ("requests", "tenant_requests", "Ended requests of a tenant."),
            ("refused", "tenant_rejections", "Requests of a tenant that the engine did not admit."),
            ("prompt_tokens", "tenant_prompt_tokens", "Prompt tokens of a tenant's ended requests."),
            ("generation_tokens", "tenant_generation_tokens", "Tokens generated for a tenant's ended requests."),
        ):
            counter = CounterMetricFamily(f"ekiden:{name}", text, labels=[*LABELS, "tenant"])
            for tenant, totals in tenants.items():
                value = self._count(f"{name}/{tenant}", getattr(totals, field))
                counter.add_metric([*self._labels, tenant], value)
            yield counter


class ApiMetrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self, stats: Callable[[], EngineStats], healthy: Callable[[], bool], model_name: str) -> None:
        # No dashboard reads the extra "_created" series.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the package leaves it untyped
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(EngineCollector(stats, healthy, model_name))
        gap = Histogram(
            "ekiden:inter_token_latency_seconds",
            "Between two tokens of a request, as its stream got them.",
            LABELS,
            buckets=TOKEN_TIME_BOUNDS,
            registry=self.registry,
        )
        self.observe_gap = gap.labels(model_name, ENGINE).observe
        """Seconds between two tokens of one request."""

    def render(self) -> bytes:
        return generate_latest(self.registry)
