"""What the engine counts for ``/metrics``. Counters only grow.

Everything here is counted from the same turn, finish and refusal that the ledger records, at the same place and once.
So the stored ends, added up, give these numbers again (``tests/api/test_metrics_add_up.py``).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from ekiden.engine.interface import (
    LATENCIES,
    LATENCY_BOUNDS,
    OTHER_TENANTS,
    STEP_TOKEN_BOUNDS,
    TOKEN_TIME_BOUNDS,
    Distribution,
    EngineStats,
    TenantTotals,
)
from ekiden.measure.figures import time_per_output_token
from ekiden.state.request import Finish, Refusal, Request, RequestUpdate
from ekiden.state.turn import Turn

_BOUNDS = {"request_time_per_output_token": TOKEN_TIME_BOUNDS}


class _Histogram:
    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> Distribution:
        return Distribution(tuple(self._counts), self._total)


class LatencyTotals:
    """How long ended requests took. A stage that a request never reached is not observed."""

    def __init__(self) -> None:
        self._histograms = {name: _Histogram(_BOUNDS.get(name, LATENCY_BOUNDS)) for name in LATENCIES}
        self._snapshot: tuple[Distribution, ...] | None = None

    def observe(self, finish: Finish) -> None:
        self._snapshot = None
        arrival, admitted, first = finish.arrival_time, finish.admitted_time, finish.first_token_time
        self._observe("e2e_request_latency", finish.finish_time - arrival)
        if admitted is None:
            return
        self._observe("request_queue_time", admitted - arrival)
        if first is None:
            return
        self._observe("time_to_first_token", first - arrival)
        self._observe("request_prefill_time", first - admitted)
        self._observe("request_decode_time", finish.finish_time - first)
        per_token = time_per_output_token(first, finish.finish_time, finish.num_output_tokens)
        if per_token is not None:
            self._observe("request_time_per_output_token", per_token)

    def _observe(self, name: str, seconds: float) -> None:
        self._histograms[name].observe(seconds)

    def snapshot(self) -> tuple[Distribution, ...]:
        """In the order of :data:`LATENCIES`. Made anew only when a request has ended: it is asked for every step."""
        if self._snapshot is None:
            self._snapshot = tuple(histogram.snapshot() for histogram in self._histograms.values())
        return self._snapshot


class TenantCounts:
    """What each configured tenant used; all others together are :data:`OTHER_TENANTS`, so the set is bounded."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._snapshot: dict[str, TenantTotals] | None = None

    def name(self, tenants: Iterable[str]) -> None:
        """Count these apart from now on. Those that were named before still are: counters only grow."""
        for name in sorted(tenants):
            self._counts.setdefault(name, [0, 0, 0, 0])
        if self._counts:
            self._counts.setdefault(OTHER_TENANTS, [0, 0, 0, 0])
        self._snapshot = None

    def _of(self, tenant: str) -> list[int]:
        self._snapshot = None
        return self._counts.get(tenant) or self._counts[OTHER_TENANTS]

    def ended(self, finish: Finish) -> None:
        if self._counts:
            counts = self._of(finish.tenant)
            counts[0] += 1
            counts[2] += finish.num_prompt_tokens
            counts[3] += finish.num_output_tokens

    def refused(self, request: Request) -> None:
        if self._counts:
            self._of(request.tenant)[1] += 1

    def snapshot(self) -> dict[str, TenantTotals]:
        if self._snapshot is None:
            self._snapshot = {name: TenantTotals(*counts) for name, counts in self._counts.items()}
        return self._snapshot


class Totals:
    """Its numbers have the names that they have in :class:`EngineStats`."""

    def __init__(self, tenants: Iterable[str] = ()) -> None:
        self.steps_total = 0
        self.prompt_tokens_total = 0
        self.generation_tokens_total = 0
        self.preemptions_total = 0
        self.last_step_tokens = 0
        self.step_tokens_total = 0
        self.steps_by_tokens = [0] * (len(STEP_TOKEN_BOUNDS) + 1)
        self.model_seconds_total = self.sampling_seconds_total = self.host_seconds_total = 0.0
        self.finished_total: Counter[str] = Counter()
        self.refused_total: Counter[str] = Counter()
        self.refused_by_door_total: Counter[str] = Counter()
        self.latency_totals = LatencyTotals()
        self.tenant_counts = TenantCounts()
        self.tenant_counts.name(tenants)

    def snapshot(self) -> EngineStats:
        stats = msgspec.convert(self, EngineStats, from_attributes=True)
        latencies, tenants = self.latency_totals.snapshot(), self.tenant_counts.snapshot()
        return msgspec.structs.replace(stats, latencies=latencies, tenants=tenants)

    def count_step(self, turn: Turn) -> None:
        """A turn whose step was computed."""
        formed, output = turn.formed, turn.output
        assert formed is not None
        assert output is not None
        self.steps_total += 1
        self.prompt_tokens_total += formed.load.prefill_tokens
        self.generation_tokens_total += sum(len(update.token_ids) for update in turn.updates)
        self.preemptions_total += len(formed.preempted)
        tokens = self.last_step_tokens = formed.plan.total_tokens
        self.step_tokens_total += tokens
        self.steps_by_tokens[bisect_left(STEP_TOKEN_BOUNDS, tokens)] += 1
        self.model_seconds_total += output.timing.model
        self.sampling_seconds_total += output.timing.sampling
        self.host_seconds_total += output.timing.host
        self.count_ends(turn.updates)

    def count_failed_step(self, turn: Turn) -> None:
        """A turn whose step the runner failed: nothing was computed, but victims had been chosen."""
        assert turn.formed is not None
        self.preemptions_total += len(turn.formed.preempted)
        self.count_ends(turn.updates)

    def count_ends(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            if update.finish is not None:
                self.finished_total[update.finish.reason.value] += 1
                self.latency_totals.observe(update.finish)
                self.tenant_counts.ended(update.finish)

    def count_refusal(self, request: Request, refusal: Refusal) -> None:
        (self.refused_by_door_total if refusal.by_door else self.refused_total)[refusal.reason.value] += 1
        self.tenant_counts.refused(request)
