"""The `fair` order: a weighted virtual token counter for each tenant (Sheng et al., "Fairness in Serving Large
Language Models", OSDI 2024).

Each tenant's counter grows by the service it receives, divided by its weight: prompt tokens at admission (those found
in the prefix cache at their own, lower rate), output tokens as they are made. The waiting tenant
with the smallest counter joins next; within a tenant, order of arrival. When a tenant had no request waiting and a new
one comes, its counter is raised to the smallest of the waiting tenants, or to that of the last one that left the queue:
idle time cannot be saved up. A request that does not fit may be passed only by requests of tenants whose counter is not
larger.

Bound: while two tenants stay backlogged, the service they receive (over their weights) differs by at most
``2 * max(prompt_weight * longest prompt, output_weight * tokens the batch can hold)`` over the smallest weight.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ekiden.state.controls import Controls
from ekiden.state.policy import ServiceCounters
from ekiden.state.sequence import Sequence

_FORGET_ABOVE = 4096
"""How many idle tenants are remembered at least."""


@dataclass(slots=True)
class _Tenant:
    weight: float
    counter: float = 0.0
    waiting: OrderedDict[str, Sequence] = field(default_factory=OrderedDict)


class FairQueue:
    def __init__(self, controls: Controls, counters: ServiceCounters) -> None:
        self._controls = controls
        self._prompt_weight = controls.fair_prompt_weight
        self._cached_weight = controls.fair_cached_weight
        self._output_weight = controls.fair_output_weight
        self._tenants = {name: _Tenant(self._weight(name), counter) for name, counter in counters.by_tenant.items()}
        self._backlogged: dict[str, _Tenant] = {}
        self._last_to_leave = _Tenant(1.0, counters.floor)

    def push(self, sequence: Sequence) -> None:
        name = sequence.request.tenant
        tenant = self._tenant(name)
        if name not in self._backlogged:
            # A tenant that had no request waiting gets no credit for that time.
            tenant.counter = max(tenant.counter, self._floor())
            self._backlogged[name] = tenant
        tenant.waiting[sequence.request_id] = sequence

    def take_over(self, sequences: Iterable[Sequence]) -> None:
        """All these tenants have been waiting, so none is raised to the counter of another: only to the floor."""
        waiting, floor = list(sequences), self._floor()
        for name in sorted({sequence.request.tenant for sequence in waiting}):
            tenant = self._backlogged[name] = self._tenant(name)
            tenant.counter = max(tenant.counter, floor)
        for sequence in waiting:
            self.push(sequence)

    def _floor(self) -> float:
        return min((tenant.counter for tenant in self._backlogged.values()), default=self._last_to_leave.counter)

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= 2 * len(self._backlogged) + _FORGET_ABOVE:
                self._forget_idle()
            tenant = self._tenants[name] = _Tenant(self._weight(name))
        return tenant

    def _weight(self, tenant: str) -> float:
        return self._controls.limits_of(tenant).weight

    def _forget_idle(self) -> None:
        """Drop idle tenants whose counters would be raised to the floor anyway when they come back."""
        floor = self._floor()
        self._tenants = {n: t for n, t in self._tenants.items() if t.waiting or t.counter > floor}

    def first(self, count: int) -> list[Sequence]:
        """The first ``count``, as if each were charged its prompt when it joins."""
        if count == 1 and self._backlogged:
            tenant = min(self._backlogged.items(), key=lambda item: (item[1].counter, item[0]))[1]
            return [next(iter(tenant.waiting.values()))]
        ahead = [(tenant.counter, name, iter(tenant.waiting.values())) for name, tenant in self._backlogged.items()]
        chosen: list[Sequence] = []
        while ahead and len(chosen) < count:
            lowest = min(range(len(ahead)), key=lambda index: ahead[index][:2])
            counter, name, waiting = ahead[lowest]
            sequence = next(waiting, None)
            if sequence is None:
                ahead.pop(lowest)
                continue
            chosen.append(sequence)
            cost = self._prompt_weight * sequence.num_prompt_tokens / self._tenants[name].weight
            ahead[lowest] = (counter + cost, name, waiting)
        return chosen

    def remove(self, sequence: Sequence) -> None:
        name = sequence.request.tenant
        tenant = self._tenants[name]
        del tenant.waiting[sequence.request_id]
        if not tenant.waiting:
            del self._backlogged[name]
            self._last_to_leave = tenant

    def may_pass(self, candidate: Sequence, blocked: Sequence) -> bool:
        """False when the candidate's tenant has the larger counter: its small requests would take it further ahead."""
        return self._tenant(candidate.request.tenant).counter <= self._tenant(blocked.request.tenant).counter

    def charge(self, sequence: Sequence, *, prompt: int = 0, cached: int = 0, output: int = 0) -> None:
        """``prompt`` (computed) and ``cached`` tokens are charged at admission, ``output`` tokens as they are made."""
        tenant = self._tenant(sequence.request.tenant)
        service = self._prompt_weight * prompt + self._cached_weight * cached + self._output_weight * output
        tenant.counter += service / tenant.weight

    def standing(self, sequence: Sequence) -> float:
        """Its tenant's virtual counter."""
        return self._tenants[sequence.request.tenant].counter

    def num_ahead(self, sequence: Sequence) -> int:
        """Of its own tenant, those before a newcomer. How many of others' come first depends on what is yet to be
        served, and for one that waits nobody has counted its place, so these are none."""
        tenant = self._tenants.get(sequence.request.tenant)
        return 0 if tenant is None or sequence.request_id in tenant.waiting else len(tenant.waiting)

    def counters(self) -> ServiceCounters:
        """Each known tenant's virtual counter, and the one to which a newcomer would be raised now."""
        return ServiceCounters({name: tenant.counter for name, tenant in self._tenants.items()}, self._floor())

    def check_integrity(self) -> None:
        for name, tenant in self._tenants.items():
            assert (name in self._backlogged) == bool(tenant.waiting), f"{name} is backlogged without a request"
