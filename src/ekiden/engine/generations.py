"""One server's counters over all engines that it has had.

An engine reports now and then what it has counted, and one that dies says nothing of the time after its last report.
What the supervisor saw in that time is counted here: tokens given and requests ended. So the totals never fall, and
they agree with what clients got. Only prompt tokens, steps and their times of the last fraction of a second may be
missing. Gauges are those of the living engine.
"""

from collections.abc import Mapping
from operator import add
from typing import Any, Final

from msgspec.structs import astuple, replace

from ekiden.engine.interface import OTHER_TENANTS, Distribution, EngineStats, TenantTotals
from ekiden.engine.totals import Totals
from ekiden.state.request import RefusedCall, Request, RequestUpdate

_SUMS: Final = [name for name in EngineStats.__struct_fields__ if name.endswith("_total") and name != "kv_blocks_total"]


class Generations:
    def __init__(self, tenants: Mapping[str, object]) -> None:
        self._before = EngineStats()
        """The sums of the engines that have ended."""
        self._newest: EngineStats | None = None
        """The last report of the living engine."""
        self._own = Totals(tenants)
        """What no engine counted."""
        self._unreported_tokens = 0
        self._unreported_ends: list[tuple[Request, RequestUpdate]] = []
        self._plain = True
        self.restarts = self.carried_over = self.condemned = 0

    def report(self, stats: EngineStats) -> None:
        """The living engine reports everything up to now."""
        self._newest = stats
        self._unreported_tokens = 0
        self._unreported_ends.clear()

    def saw(self, num_tokens: int) -> None:
        """The living engine gave tokens after its last report."""
        self._unreported_tokens += num_tokens

    def saw_end(self, request: Request, update: RequestUpdate) -> None:
        """The living engine ended or refused a request after its last report."""
        self._unreported_ends.append((request, update))

    def engine_ended(self) -> None:
        """There is no engine until the next report."""
        self._plain = False
        newest, self._newest = self._newest or EngineStats(), None
        self._own.name_tenants(newest.tenants.keys() - {OTHER_TENANTS})
        self._own.counters.generation_tokens_total += self._unreported_tokens
        for request, update in self._unreported_ends:
            self.count_end(request, update)
        self._unreported_tokens = 0
        self._unreported_ends.clear()
        self._before = combined(self._before, newest)

    def count_end(self, request: Request, update: RequestUpdate) -> None:
        """A request has ended, and no engine counts it."""
        self._plain = False
        if update.refusal is not None:
            self._own.count_refusal(request, update.refusal)
        else:
            self._own.count_ends([update])

    def count_refusal(self, refused: RefusedCall) -> None:
        self._plain = False
        self._own.count_refusal(refused.request, refused.refusal)

    def stats(self) -> EngineStats:
        """The sums over all engines, and the gauges of the living one."""
        newest = self._newest or EngineStats()
        if self._plain:
            return newest
        sums = combined(combined(self._before, self._own.sums()), newest)
        return replace(
            sums,
            engine_restarts_total=self.restarts,
            requests_carried_over_total=self.carried_over,
            requests_ending_engines_total=self.condemned,
        )


def combined(earlier: EngineStats, newest: EngineStats) -> EngineStats:
    """The sums of both, with the gauges of the newest."""
    fields: dict[str, Any] = {}
    for name in _SUMS:
        one, other = getattr(earlier, name), getattr(newest, name)
        fields[name] = _added(one, other) if isinstance(one, dict) else one + other
    return replace(
        newest,
        **fields,
        steps_by_tokens=_places(earlier.steps_by_tokens, newest.steps_by_tokens),
        latencies=_distributions(earlier.latencies, newest.latencies),
        tenants={
            name: TenantTotals(*map(add, astuple(_tenant(earlier, name)), astuple(_tenant(newest, name))))
            for name in earlier.tenants | newest.tenants
        },
    )


def _tenant(stats: EngineStats, name: str) -> TenantTotals:
    return stats.tenants.get(name, TenantTotals())


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _places(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(add, one, other)) if one and other else one or other


def _distributions(one: tuple[Distribution, ...], other: tuple[Distribution, ...]) -> tuple[Distribution, ...]:
    if not one or not other:
        return one or other
    return tuple(
        Distribution(_places(earlier.counts, newest.counts), earlier.total + newest.total)
        for earlier, newest in zip(one, other, strict=True)
    )
