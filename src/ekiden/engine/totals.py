"""What the engine counts for ``/metrics``. Counters only grow.

Everything here is counted from the same turn, finish and refusal that the ledger records, at the same place and once.
So the stored ends, added up, give these numbers again (``tests/api/test_metrics_add_up.py``).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import add

from msgspec.structs import asdict, astuple, replace

from ekiden.engine.interface import (
    LATENCIES,
    OTHER_TENANTS,
    STEP_TOKEN_BOUNDS,
    Distribution,
    EngineCounters,
    EngineStats,
    TenantTotals,
)
from ekiden.kv_cache.kv_cache_manager import KVCacheManager
from ekiden.measure.figures import time_per_output_token
from ekiden.state.population import Population
from ekiden.state.request import Finish, Refusal, Request, RequestUpdate
from ekiden.state.turn import FormationOutcome, Turn, WaitReason


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


class Totals:
    def __init__(self, tenants: Iterable[str] = ()) -> None:
        self.counters = EngineCounters()
        self.steps_by_tokens = [0] * (len(STEP_TOKEN_BOUNDS) + 1)
        self.finished: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.refused_by_door: Counter[str] = Counter()
        self.no_drafts: Counter[str] = Counter()
        self.latencies = {name: _Histogram(bounds) for name, bounds in LATENCIES.items()}
        self.tenants: dict[str, TenantTotals] = {}
        """Replaced, never changed, as snapshots hold it. All other tenants together are :data:`OTHER_TENANTS`."""
        self.name_tenants(tenants)

    def name_tenants(self, names: Iterable[str]) -> None:
        """Count these apart from now on. Those that were named before still are: counters only grow."""
        if named := sorted(names):
            self.tenants = dict.fromkeys([*named, OTHER_TENANTS], TenantTotals()) | self.tenants

    def count_step(self, turn: Turn) -> None:
        """A turn that had a step. Where the runner failed nothing was computed, but victims had been chosen."""
        formed, output, counters = turn.formed, turn.output, self.counters
        assert formed is not None
        counters.preemptions_total += len(formed.preempted)
        for reason, count in formed.num_no_drafts.items():
            self.no_drafts[reason.value] += count
        self.count_ends(turn.updates)
        if output is None:
            return
        counters.steps_total += 1
        counters.steps_run_again_total += output.attempts > 1
        counters.new_sizes_total += output.new_sizes
        counters.prompt_tokens_total += formed.load.prefill_tokens
        counters.generation_tokens_total += sum(len(update.token_ids) for update in turn.updates)
        tokens = counters.last_step_tokens = formed.plan.total_tokens
        counters.step_tokens_total += tokens
        self.steps_by_tokens[bisect_left(STEP_TOKEN_BOUNDS, tokens)] += 1
        counters.model_seconds_total += output.timing.model
        counters.sampling_seconds_total += output.timing.sampling
        counters.host_seconds_total += output.timing.host

        self._count_drafts(turn, formed)

    def _count_drafts(self, turn: Turn, formed: FormationOutcome) -> None:
        if not formed.guesses:
            return
        counters, given = self.counters, {update.request_id: len(update.token_ids) for update in turn.updates}
        for index in formed.guesses:
            if drafts := formed.plan.rows[index].num_drafts:
                counters.spec_decode_num_drafts_total += 1
                counters.spec_decode_num_draft_tokens_total += drafts
                tokens = given.get(formed.sequences[index].request_id, 0)
                counters.spec_decode_num_accepted_tokens_total += max(0, tokens - 1)

    def count_ends(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            if update.finish is not None:
                self.finished[update.finish.reason.value] += 1
                self._observe(update.finish)
                used = TenantTotals(1, 0, update.finish.num_prompt_tokens, update.finish.num_output_tokens)
                self._add(update.finish.tenant, used)

    def count_refusal(self, request: Request, refusal: Refusal) -> None:
        (self.refused_by_door if refusal.by_door else self.refused)[refusal.reason.value] += 1
        self._add(request.tenant, TenantTotals(refused=1))

    def sums(self) -> EngineStats:
        """What was counted, without what stands at a moment."""
        return EngineStats(
            **asdict(self.counters),
            finished_total=dict(self.finished),
            refused_total=dict(self.refused),
            refused_by_door_total=dict(self.refused_by_door),
            spec_decode_no_drafts_total=dict(self.no_drafts),
            steps_by_tokens=tuple(self.steps_by_tokens),
            latencies=tuple(histogram.snapshot() for histogram in self.latencies.values()),
            tenants=self.tenants,
        )

    def snapshot(self, population: Population, kv: KVCacheManager, wait_reason: WaitReason | None) -> EngineStats:
        """The counters, with where the requests stand now; ``wait_reason`` holds back all that wait."""
        num_waiting = len(population.queued)
        return replace(
            self.sums(),
            num_running=len(population.running),
            num_waiting=num_waiting,
            num_paused=len(population.paused),
            num_preempted=len(population.preempted),
            waiting_by_reason={wait_reason.value: num_waiting} if wait_reason and num_waiting else {},
            waiting_tokens=population.queue_size.tokens,
            kv_blocks_total=kv.pool.num_blocks,
            kv_blocks_used=kv.pool.num_referenced,
            prefix_cache_queries_total=kv.prefix_queries,
            prefix_cache_hits_total=kv.prefix_hits,
        )

    def _observe(self, finish: Finish) -> None:
        """How long a request took. A stage that it never reached is not observed."""
        arrival, admitted, first, end = (
            finish.arrival_time, finish.admitted_time, finish.first_token_time, finish.finish_time,
        )  # fmt: skip
        seconds: dict[str, float | None] = {"e2e_request_latency": end - arrival}
        if admitted is not None:
            if first is None or first >= admitted:  # otherwise an earlier engine had admitted it, nobody knows when
                seconds["request_queue_time"] = admitted - arrival
            if first is not None:
                seconds["time_to_first_token"] = first - arrival
                seconds["request_prefill_time"] = first - admitted if first >= admitted else None
                seconds["request_decode_time"] = end - first
                seconds["request_time_per_output_token"] = time_per_output_token(first, end, finish.num_output_tokens)
        for name, value in seconds.items():
            if value is not None:
                self.latencies[name].observe(value)

    def _add(self, tenant: str, used: TenantTotals) -> None:
        if self.tenants:
            name = tenant if tenant in self.tenants else OTHER_TENANTS
            sums = map(add, astuple(self.tenants[name]), astuple(used))
            self.tenants = {**self.tenants, name: TenantTotals(*sums)}
