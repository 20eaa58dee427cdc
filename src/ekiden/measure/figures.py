"""Latency and throughput figures, each with its formula, because one name means different things in different tools.

Times are seconds. A percentile is what :mod:`ekiden.measure.percentiles` says.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ekiden.measure.percentiles import quantiles

Figures = dict[str, object]
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
    "good": "answers that are whole, with TTFT and TPOT within their objectives",
    "slo_attainment": "good / all offered requests; refusals, time-outs and errors are not good",
    "goodput_per_second": "good / duration of the arrivals",
    "slot_utilisation": "slot-steps that computed a running request / (slots x steps)",
    "budget_share": "tokens computed / token budget of the steps",
    "kv_share": "KV blocks used at the end of a step / all blocks, mean over steps",
    "cpu_seconds": "processor time of the engine's process, all its threads, without warm-up",
    "joules": "energy of all processor packages of the machine, by their counters",
    "percentiles": "linear interpolation: the value at position (n - 1) * p / 100 of the values in order",
}


def time_per_output_token(first: float, last: float, output_tokens: int) -> float | None:
    """TPOT of one request; None for fewer than two tokens."""
    return (last - first) / (output_tokens - 1) if output_tokens > 1 else None


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """What was seen of one request. ``event_times`` are arrivals of non-empty content.

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
        if len(self.event_times) < 2:
            return None
        return time_per_output_token(self.event_times[0], self.event_times[-1], self.output_tokens)

    @property
    def e2e(self) -> float | None:
        return self.event_times[-1] - self.intended if self.event_times else None

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.event_times)]

    def meets(self, ttft: float, tpot: float) -> bool:
        """Whether the answer is whole, its first token came within ``ttft`` and its TPOT is within ``tpot``."""
        return self.failure is None and self.ttft is not None and self.ttft <= ttft and (self.tpot or 0.0) <= tpot


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """One engine step: ``seconds`` of wall time, ``model_seconds`` of it inside the compiled model."""

    seconds: float
    model_seconds: float
    sampling_seconds: float = 0.0
    decode_tokens: int = 0
    prefill_tokens: int = 0


def request_figures(records: Sequence[RequestRecord], *, duration: float) -> Figures:
    """Counts, rates and latencies of ``bench --json``; failures count as requests and give no latencies."""
    whole = [record for record in records if record.failure is None]
    prompt, output = sum(record.prompt_tokens for record in whole), sum(record.output_tokens for record in whole)
    return {
        "requests": len(records),
        "failures": len(records) - len(whole),
        "failures_by_kind": dict(Counter(record.failure for record in records if record.failure is not None)),
        "duration_seconds": duration,
        **throughput(prompt, output, duration),
        "ttft_seconds": quantiles(x for r in whole if (x := r.ttft) is not None),
        "tpot_seconds": quantiles(x for r in whole if (x := r.tpot) is not None),
        "e2e_seconds": quantiles(x for r in whole if (x := r.e2e) is not None),
    }


def stream_figures(records: Sequence[RequestRecord], *, duration: float) -> Figures:
    """:func:`request_figures`, and what only a client knows that saw every event."""
    whole = [record for record in records if record.failure is None]
    return request_figures(records, duration=duration) | {
        "itl_seconds": quantiles(gap for r in whole for gap in r.gaps),
        "itl_max_seconds": quantiles(max(gaps) for r in whole if (gaps := r.gaps)),
        "send_lag_seconds": quantiles(r.sent - r.intended for r in records if r.sent),
    }


def throughput(prompt_tokens: int, output_tokens: int, duration: float) -> Figures:
    """Token counts and their rates over ``duration`` seconds; a rate over no time is None."""
    return {
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "prompt_tokens_per_second": _over(prompt_tokens, duration),
        "output_tokens_per_second": _over(output_tokens, duration),
        "total_tokens_per_second": _over(prompt_tokens + output_tokens, duration),
    }


def step_figures(steps: Sequence[StepSample]) -> Figures:
    """Decode rates, step times and the share of time outside the model."""
    with_decode = [step for step in steps if step.decode_tokens]
    pure = [step for step in with_decode if not step.prefill_tokens]
    total = sum(step.seconds for step in steps)
    return {
        "steps": len(steps),
        "decode_tokens_per_second": _decode_rate(with_decode),
        "pure_decode_tokens_per_second": _decode_rate(pure),
        "step_seconds": quantiles(step.seconds for step in steps),
        "host_share": _over(total - sum(step.model_seconds for step in steps), total),
        "sampling_share": _over(sum(step.sampling_seconds for step in steps), total),
    }


def _decode_rate(steps: Sequence[StepSample]) -> float | None:
    return _over(sum(step.decode_tokens for step in steps), sum(step.seconds for step in steps))


def _over(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None
