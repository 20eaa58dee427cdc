"""How much service tenants got while both had work waiting, as Sheng et al. measure it ("Fairness in Serving Large
Language Models", OSDI 2024), from what a client sees. The measure itself is :mod:`ekiden.measure.service`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from ekiden.evaluation.analysis.subgroups import most_requests
from ekiden.evaluation.results import Answered, ArmRun
from ekiden.measure.service import (
    OUTPUT_WEIGHT,
    PROMPT_WEIGHT,
    Interval,
    Service,
    Vector,
    bound,
    difference,
    merged,
    together,
)

FORMULA: Final = (
    "largest |service of p - service of q| over any time in which both tenants have a request without a token / "
    "(2 * max(w_p * longest prompt, w_q * tokens that the KV pool holds)); service = w_p * prompt tokens + w_q * "
    f"output tokens, w_p = {PROMPT_WEIGHT:g}, w_q = {OUTPUT_WEIGHT:g}; for an unknown pool the most tokens in flight"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceGap:
    """The largest difference of a run, between ``tenants``, and the bound. Weighted tokens."""

    tenants: tuple[str, str]
    tokens: float
    bound: float
    bound_from: str
    """``kv pool`` or ``tokens in flight``: what stood for the tokens of the batch."""

    @property
    def share(self) -> float:
        return self.tokens / self.bound


def services(run: ArmRun) -> dict[str, Service]:
    """The tenants of a run with the most requests, each with its service; only their pairs are compared."""
    return {
        tenant: _service([result for result in run.results if result.tenant == tenant], run.seconds)
        for tenant in most_requests(run.results)
    }


def service_gap(run: ArmRun) -> ServiceGap | None:
    """The largest difference between two tenants of a run; None where there is one tenant only."""
    of_tenant = services(run)
    gaps = [(difference(of_tenant[p], of_tenant[q]), (p, q)) for p, q in combinations(of_tenant, 2)]
    if not gaps:
        return None
    tokens, tenants = max(gaps)
    bound, source = bound_of(run)
    return ServiceGap(tenants=tenants, tokens=tokens, bound=bound, bound_from=source)


def bound_of(run: ArmRun) -> tuple[float, str]:
    """The bound of a run in weighted tokens, and what stood for the tokens of the batch."""
    known = None if run.steps is None else run.steps.kv_tokens
    batch = known or tokens_in_flight(run.results)
    longest = max((result.prompt_tokens for result in run.results), default=0)
    return bound(longest, batch), "kv pool" if known else "tokens in flight"


def service_over_time(p: Service, q: Service) -> tuple[Vector, Vector]:
    """Moments in order, and by how much more service ``p`` than ``q`` had got by then, of what came while both were
    backlogged; between such times it stays as it is."""
    times, apart = [np.zeros(1)], [np.zeros(1)]
    for moments, of_p, of_q in together(p, q):
        times.append(moments)
        apart.append(apart[-1][-1] + (of_p - of_p[0]) - (of_q - of_q[0]))
    return np.concatenate(times), np.concatenate(apart)


def tokens_in_flight(results: Sequence[Answered]) -> int:
    """The most prompt and output tokens, at their full length, of answers that were being given at the same time."""
    changes = []
    for result in results:
        if times := result.record.event_times:
            tokens = result.prompt_tokens + result.record.output_tokens
            changes += [(times[0], tokens), (times[-1], -tokens)]
    held = most = 0
    for _, tokens in sorted(changes, key=lambda change: (change[0], -change[1])):
        held += tokens
        most = max(most, held)
    return most


def _service(results: Sequence[Answered], run_seconds: float) -> Service:
    times: list[float] = []
    amounts: list[float] = []
    waits: list[Interval] = []
    for result in results:
        record = result.record
        if record.event_times:
            each = OUTPUT_WEIGHT * record.output_tokens / len(record.event_times)
            times += record.event_times
            amounts += [PROMPT_WEIGHT * result.prompt_tokens + each, *[each] * (len(record.event_times) - 1)]
            waits.append((record.intended, record.event_times[0]))
        elif not (record.failure or "").startswith("refused"):  # a refused request never waited
            waits.append((record.intended, record.end or run_seconds))
    order = np.argsort(np.array(times), kind="stable")
    return Service(
        times=np.array(times, np.float64)[order],
        received=np.cumsum(np.array(amounts, np.float64)[order]),
        backlogged=merged(waits),
    )
