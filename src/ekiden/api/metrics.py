"""Prometheus metrics. Gauges and counters are read from the engine's latest snapshot when they are asked for; the
histograms are filled here, from the times in each request's finish and from the gaps between its tokens.

Counters never fall: when the engine restarts and counts from zero again, what was counted before is kept.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ekiden.engine.interface import STEP_TOKEN_BOUNDS, EngineStats
from ekiden.state.request import Finish

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
LABELS: Final = ("model_name", "engine")
ENGINE: Final = "0"

_FAST: Final = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_SLOW: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


class Growing:
    """A counter's value over engine restarts: a fall means that counting began again."""

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

    def __init__(self, stats: Callable[[], EngineStats], model_name: str, rejections: dict[str, int]) -> None:
        self._stats = stats
        self._labels = [model_name, ENGINE]
        self._rejections = rejections
        self._growing: dict[str, Growing] = {}

    def describe(self) -> Iterable[Metric]:
        return []

    def _count(self, key: str, value: float) -> float:
        return self._growing.setdefault(key, Growing()).update(value)

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield from self._gauges(stats)
        yield from self._counters(stats)
        yield self._step_tokens(stats)
        yield self._by("request_success", "Finished requests.", "finished_reason", stats.finished_total)
        refused = dict(self._rejections)
        for reason, count in stats.refused_total.items():
            refused[reason] = refused.get(reason, 0) + count
        yield self._by("admission_rejections", "Requests that were not admitted.", "reason", refused)

    def _gauges(self, stats: EngineStats) -> Iterator[Metric]:
        usage = stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0
        for name, text, value in (
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
        ):
            counter = CounterMetricFamily(f"ekiden:{name}", text, labels=LABELS)
            counter.add_metric(self._labels, self._count(name, value))
            yield counter

    def _step_tokens(self, stats: EngineStats) -> Metric:
        """Tokens of a step. Not ours to observe one by one: the engine counts its steps by size."""
        histogram = HistogramMetricFamily("ekiden:iteration_tokens_total", "Tokens computed in a step.", labels=LABELS)
        counts = stats.steps_by_tokens or (0,) * (len(STEP_TOKEN_BOUNDS) + 1)
        bounds = [*map(float, STEP_TOKEN_BOUNDS), math.inf]
        total = 0.0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip(bounds, counts, strict=True):
            total += self._count(f"iteration_tokens/{bound}", count)
            buckets.append(("+Inf" if bound == math.inf else str(bound), total))
        tokens = self._count("iteration_tokens_sum", stats.step_tokens_total)
        histogram.add_metric(self._labels, buckets, tokens)
        return histogram

    def _by(self, name: str, text: str, label: str, values: dict[str, int]) -> Metric:
        counter = CounterMetricFamily(f"ekiden:{name}", text, labels=[*LABELS, label])
        # Reasons seen before stay: a series that vanishes with an engine restart would look like a fall.
        known = {key.partition("/")[2] for key in self._growing if key.startswith(f"{name}/")}
        for reason in sorted(known | set(values)):
            counter.add_metric([*self._labels, reason], self._count(f"{name}/{reason}", values.get(reason, 0)))
        return counter


class ApiMetrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self, stats: Callable[[], EngineStats], model_name: str) -> None:
        # The extra "_created" series say nothing that a dashboard reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the package leaves it untyped
        self.registry = CollectorRegistry(auto_describe=False)
        self.rejections: dict[str, int] = {}
        """Requests refused before they reached the engine, by reason."""
        self.registry.register(EngineCollector(stats, model_name, self.rejections))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            metric = Histogram(f"ekiden:{name}", text, LABELS, buckets=buckets, registry=self.registry)
            return metric.labels(model_name, ENGINE)

        self._first_token = histogram("time_to_first_token_seconds", "From arrival to the first token.", _SLOW)
        self._queue = histogram("request_queue_time_seconds", "From arrival to admission.", _SLOW)
        self._prefill = histogram("request_prefill_time_seconds", "From admission to the first token.", _SLOW)
        self._decode = histogram("request_decode_time_seconds", "From the first token to the last.", _SLOW)
        self._e2e = histogram("e2e_request_latency_seconds", "From arrival to the end.", _SLOW)
        self._per_token = histogram(
            "request_time_per_output_token_seconds", "Mean time of a token after the first.", _FAST
        )
        self._gap = histogram("inter_token_latency_seconds", "Between two tokens of a request, as delivered.", _FAST)
        self.observe_gap = self._gap.observe
        """Seconds between two tokens of one request."""

    def reject(self, reason: str) -> None:
        self.rejections[reason] = self.rejections.get(reason, 0) + 1

    def observe_finish(self, finish: Finish) -> None:
        self._e2e.observe(finish.finish_time - finish.arrival_time)
        if finish.admitted_time is None:
            return
        self._queue.observe(finish.admitted_time - finish.arrival_time)
        if finish.first_token_time is None:
            return
        decode = finish.finish_time - finish.first_token_time
        self._first_token.observe(finish.first_token_time - finish.arrival_time)
        self._prefill.observe(finish.first_token_time - finish.admitted_time)
        self._decode.observe(decode)
        if finish.num_output_tokens > 1:
            self._per_token.observe(decode / (finish.num_output_tokens - 1))

    def render(self) -> bytes:
        return generate_latest(self.registry)
