"""How much service tenants got while both had work waiting: what evaluation and guard measure alike.

Service is weighted tokens: a prompt counts when the first token comes, each output token when it comes. A tenant is
backlogged while one of its requests has arrived and has no token yet. While two tenants are both backlogged, a fair
order lets their service differ by at most :func:`bound`. The difference is measured over every stretch of such a time,
so it is the largest less the smallest value of their cumulative difference. All tenants weigh the same here. After
Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

PROMPT_WEIGHT: Final = 1.0
OUTPUT_WEIGHT: Final = 2.0
"""Those that the order `fair` has by default (``fair_prompt_weight``, ``fair_output_weight``)."""
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


def bound(longest_prompt: int, batch_tokens: int) -> float:
    """By how much service may differ under a fair order, in weighted tokens: ``2 * max(w_p * longest prompt, w_q *
    tokens of the batch)``."""
    return 2 * max(PROMPT_WEIGHT * longest_prompt, OUTPUT_WEIGHT * batch_tokens, 1.0)


def difference(p: Service, q: Service) -> float:
    """The largest difference in service over any time in which both are backlogged."""
    return max((float(np.ptp(of_p - of_q)) for _, of_p, of_q in together(p, q)), default=0.0)


def together(p: Service, q: Service) -> Iterator[tuple[Vector, Vector, Vector]]:
    """For each time in which both are backlogged: its start and all moments at which service came, and what each of
    the two had received by then."""
    events = np.union1d(p.times, q.times)
    for begin, end in _both(p.backlogged, q.backlogged):
        first, last = np.searchsorted(events, (begin, end), side="right")
        moments = np.concatenate(([begin], events[first:last]))
        yield moments, p.at(moments), q.at(moments)


def merged(intervals: Sequence[Interval]) -> list[Interval]:
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
