"""Latency and throughput figures, each with its formula, because one name means different things in different tools.

Times are seconds. Percentiles interpolate linearly between order statistics (numpy's default). A p99 needs 299 values
for a one-sided 95 % bound; below that a table says "not estimable" and only the JSON carries the sample's value.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

LEVELS = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}
MIN_VALUES_FOR_P99 = 299

FORMULAS = {
    "duration_seconds": "last event of the run - start of the run, warm-up apart",
    "prompt_tokens_per_second": "prompt tokens / duration",
    "output_tokens_per_second": "output tokens / duration",
    "total_tokens_per_second": "(prompt + output tokens) / duration",
    "prefill_tokens_per_second": "prompt tokens / time of the steps that prefill",
    "decode_tokens_per_second": "tokens of decode rows / time of the steps that hold any",
    "pure_decode_tokens_per_second": "tokens of decode rows / their time, steps without prefill only",
    "cpu_seconds_per_step": "processor time of this process / steps",
    "step_seconds": "wall time of a step: model, sampling and host work",
    "ttft_seconds": "first non-empty token - intended arrival",
    "tpot_seconds": "(last token - first token) / (output tokens - 1), requests of 2 tokens or more",
    "itl_seconds": "every gap between consecutive content events, pooled",
    "itl_max_seconds": "largest gap of each request",
    "e2e_seconds": "last token - intended arrival",
    "send_lag_seconds": "time of sending - intended arrival",
    "host_share": "time outside the model's passes / total time of steps",
    "sampling_share": "time spent choosing tokens / total time of steps",
    "slot_utilisation": "slot-steps that computed a running request / (slots x steps)",
}


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """What a load generator saw of one request. ``event_times`` are arrivals of non-empty content.

    ``failure`` is None for a whole answer, else a short kind such as ``http_503`` or ``truncated``.
    """

    intended: float
    sent: float = 0.0
    end: float = 0.0
    event_times: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    failure: str | None = None

    @property
    def ttft(self) -> float | None:
        return self.event_times[0] - self.intended if self.event_times else None

    @property
    def tpot(self) -> float | None:
        if self.output_tokens < 2 or len(self.event_times) < 2:
            return None
        return (self.event_times[-1] - self.event_times[0]) / (self.output_tokens - 1)

    @property
    def e2e(self) -> float | None:
        return self.event_times[-1] - self.intended if self.event_times else None

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.event_times, self.event_times[1:], strict=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """One engine step: ``seconds`` of wall time, ``model_seconds`` of it inside the compiled model."""

    seconds: float
    model_seconds: float
    sampling_seconds: float = 0.0
    decode_tokens: int = 0
    prefill_tokens: int = 0


def quantiles(values: Iterable[float]) -> dict[str, float | int] | None:
    """``p50, p90, p95, p99, max`` and ``n`` of the values; None when there are none."""
    array = np.fromiter(values, dtype=np.float64)
    if array.size == 0:
        return None
    points = np.percentile(array, list(LEVELS.values()))
    result: dict[str, float | int] = {name: float(point) for name, point in zip(LEVELS, points, strict=True)}
    result["max"] = float(array.max())
    result["n"] = int(array.size)
    return result


def request_figures(records: Sequence[RequestRecord], *, duration: float) -> dict[str, object]:
    """The request figures of CONVENTIONS' ``bench --json``; failures count as requests and give no latencies."""
    whole = [record for record in records if record.failure is None]
    prompt = sum(record.prompt_tokens for record in whole)
    output = sum(record.output_tokens for record in whole)
    kinds: dict[str, int] = {}
    for record in records:
        if record.failure is not None:
            kinds[record.failure] = kinds.get(record.failure, 0) + 1
    return {
        "requests": len(records),
        "failures": len(records) - len(whole),
        "failures_by_kind": kinds,
        "duration_seconds": duration,
        **throughput(prompt, output, duration),
        "ttft_seconds": quantiles(x for r in whole if (x := r.ttft) is not None),
        "tpot_seconds": quantiles(x for r in whole if (x := r.tpot) is not None),
        "itl_seconds": quantiles(gap for r in whole for gap in r.gaps),
        "itl_max_seconds": quantiles(max(gaps) for r in whole if (gaps := r.gaps)),
        "e2e_seconds": quantiles(x for r in whole if (x := r.e2e) is not None),
        "send_lag_seconds": quantiles(r.sent - r.intended for r in records if r.sent),
    }


def throughput(prompt_tokens: int, output_tokens: int, duration: float) -> dict[str, object]:
    """Token counts and their rates over ``duration`` seconds; a rate over no time is None."""

    def rate(tokens: int) -> float | None:
        return tokens / duration if duration > 0 else None

    return {
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "prompt_tokens_per_second": rate(prompt_tokens),
        "output_tokens_per_second": rate(output_tokens),
        "total_tokens_per_second": rate(prompt_tokens + output_tokens),
    }


def step_figures(steps: Sequence[StepSample]) -> dict[str, object]:
    """Decode rates, step times and the share of time outside the model."""
    with_decode = [step for step in steps if step.decode_tokens]
    pure = [step for step in with_decode if not step.prefill_tokens]
    total = sum(step.seconds for step in steps)
    model = sum(step.model_seconds for step in steps)
    sampling = sum(step.sampling_seconds for step in steps)
    return {
        "steps": len(steps),
        "decode_tokens_per_second": _decode_rate(with_decode),
        "pure_decode_tokens_per_second": _decode_rate(pure),
        "step_seconds": quantiles(step.seconds for step in steps),
        "host_share": (total - model) / total if total > 0 else None,
        "sampling_share": sampling / total if total > 0 else None,
    }


def _decode_rate(steps: Sequence[StepSample]) -> float | None:
    seconds = sum(step.seconds for step in steps)
    return sum(step.decode_tokens for step in steps) / seconds if seconds > 0 else None
