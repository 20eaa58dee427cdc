"""How much service tenants got while both had work waiting, as Sheng et al. measure it ("Fairness in Serving Large
Language Models", OSDI 2024), from what a client sees.

Service is weighted tokens: a prompt counts when the first token comes, each output token when it comes. A tenant is
backlogged while one of its requests has arrived and has no token yet. While two tenants are both backlogged, a fair
order lets their service differ by at most ``2 * max(w_p * longest prompt, w_q * tokens of the batch)``. The difference
is measured over every stretch of such a time, so it is the largest less the smallest value of their cumulative
difference. All tenants weigh the same here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from ekiden.evaluation.analysis.subgroups import most_requests
from ekiden.evaluation.results import Answered, ArmRun

PROMPT_WEIGHT: Final = 1.0
OUTPUT_WEIGHT: Final = 2.0
"""Those that the order `fair` has by default (``fair_prompt_weight``, ``fair_output_weight``)."""
FORMULA: Final = (
    "largest |service of p - service of q| over any time in which both tenants have a request without a token / "
    "(2 * max(w_p * longest prompt, w_q * tokens that the KV pool holds)); service = w_p * prompt tokens + w_q * "
    f"output tokens, w_p = {PROMPT_WEIGHT:g}, w_q = {OUTPUT_WEIGHT:g}; for an unknown pool the most tokens in flight"
)

Interval = tuple[float, float]
Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One tenant's: when service came, how much had come by then, and when it was backlogged. Seconds and tokens."""

    times: Vector
    received: Vector
    backlogged: list[Interval]

    def at(self, moments: Vector) -> Vector:
        """The service received up to and including some moments."""
        return np.concatenate(([0.0], self.received))[np.searchsorted(self.times, moments, side="right")]

    def seconds_with(self, other: "Service") -> float:
        """How long both were backlogged."""
        return sum(end - begin for begin, end in _both(self.backlogged, other.backlogged))


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
    return 2 * max(PROMPT_WEIGHT * longest, OUTPUT_WEIGHT * batch, 1.0), "kv pool" if known else "tokens in flight"


def service_over_time(p: Service, q: Service) -> tuple[Vector, Vector]:
    """Moments in order, and by how much more service ``p`` than ``q`` had got by then, of what came while both were
    backlogged; between such times it stays as it is."""
    times, apart = [np.zeros(1)], [np.zeros(1)]
    for moments, of_p, of_q in _together(p, q):
        times.append(moments)
        apart.append(apart[-1][-1] + (of_p - of_p[0]) - (of_q - of_q[0]))
    return np.concatenate(times), np.concatenate(apart)


def difference(p: Service, q: Service) -> float:
    """The largest difference in service over any time in which both are backlogged."""
    return max((float(np.ptp(of_p - of_q)) for _, of_p, of_q in _together(p, q)), default=0.0)


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


def _together(p: Service, q: Service) -> Iterator[tuple[Vector, Vector, Vector]]:
    """For each time in which both are backlogged: its start and all moments at which service came, and what each of
    the two had received by then."""
    events = np.union1d(p.times, q.times)
    for begin, end in _both(p.backlogged, q.backlogged):
        first, last = np.searchsorted(events, (begin, end), side="right")
        moments = np.concatenate(([begin], events[first:last]))
        yield moments, p.at(moments), q.at(moments)


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
        backlogged=_merged(waits),
    )


def _merged(intervals: Sequence[Interval]) -> list[Interval]:
    """The same times as intervals that do not touch, in order."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif end > begin:
            found.append((begin, end))
    return found


def _both(one: Sequence[Interval], other: Sequence[Interval]) -> Iterator[Interval]:
    """The times that lie in both, of intervals in order."""
    i = j = 0
    while i < len(one) and j < len(other):
        begin, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if begin < end:
            yield begin, end
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
