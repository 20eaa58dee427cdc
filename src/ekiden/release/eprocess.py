"""The early stop for harm: an e-process over the pairs of a canary, which may be looked at after every pair.

In each pair one block has the candidate and one the baseline, and a fair coin says which comes first. If the candidate
changes nothing, what the two blocks would have missed is fixed before the coin falls. So it is the coin alone that
makes the candidate's block the worse one, with probability 1/2, whatever bursts, queues and moods of the machine make
requests of one block alike. Of ``n`` pairs that differ let the candidate be worse in ``s``. The e-process bets on a
probability ``p`` over 1/2, spread as Beta(a, b) cut off at 1/2::

    e = integral over p of (2 p)^s (2 (1 - p))^(n - s) Beta(p; a, b | p > 1/2)

It is the likelihood ratio of a beta-binomial to a fair coin, with mean 1 under the null and less where the candidate is
better. By Ville's inequality it ever reaches 1 / alpha with probability alpha at most, however often one looks and
whenever one stops. (Ramdas, Gruenwald, Vovk and Shafer 2023 survey such tests; the mixture is Robbins's.)

The requests themselves are not counted as if each were a throw: they are not independent, and a test that says so
raises false alarms (``tests/unit/release/test_eprocess.py`` shows how many). The price: n pairs can give no more than
2^n, so five are the fewest for an alarm at alpha 0.05. A candidate that is terrible at once is stopped by a
metric's ``blockFailureCondition``, and by the guard.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

PRIOR: Final = (9, 1)
"""Beta's a and b, whole numbers. With (9, 1) five pairs that are all worse give 20.6, with (1, 1) seven are needed for
20; where the candidate is worse in 10 of 12 pairs they give 9.2 and 9.5, so little is lost."""


def e_value(worse: int, pairs: int, prior: tuple[int, int] = PRIOR) -> float:
    """The e-process after ``pairs`` pairs that differed, in ``worse`` of which the candidate missed more.

    1 before any. Raises ValueError for more worse pairs than pairs.
    """
    if not 0 <= worse <= pairs:
        raise ValueError(f"worse is {worse} of {pairs} pairs; it must be from 0 to their number")
    a, b = prior
    return math.exp(pairs * math.log(2.0) + _log_upper(worse + a, pairs - worse + b) - _log_upper(a, b))


@cache
def _log_upper(x: int, y: int) -> float:
    """ln of the integral of p^(x - 1) (1 - p)^(y - 1) from 1/2 to 1, for whole x and y.

    It is B(x, y) times the probability that of x + y - 1 fair coins at most x - 1 fall on heads.
    """
    coins = x + y - 1
    heads = sum(math.comb(coins, k) for k in range(x))
    return math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y) + math.log(heads) - coins * math.log(2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EProcess:
    """What the pairs seen so far say against the candidate. Pairs that do not differ say nothing, and are counted."""

    alpha: float
    worse: int = 0
    better: int = 0
    equal: int = 0

    def after(self, candidate: float, baseline: float) -> "EProcess":
        """With one more pair: the share of requests that missed their objective under either."""
        if candidate > baseline:
            return replace(self, worse=self.worse + 1)
        if candidate < baseline:
            return replace(self, better=self.better + 1)
        return replace(self, equal=self.equal + 1)

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]], *, alpha: float) -> "EProcess":
        """Over pairs of the candidate's share and the baseline's."""
        found = cls(alpha=alpha)
        for candidate, baseline in pairs:
            found = found.after(candidate, baseline)
        return found

    @property
    def value(self) -> float:
        return e_value(self.worse, self.worse + self.better)

    @property
    def limit(self) -> float:
        return 1.0 / self.alpha

    @property
    def alarms(self) -> bool:
        """Whether the candidate is to be taken out now. Once it alarms the release ends, so nothing undoes it."""
        return self.value >= self.limit

    def __str__(self) -> str:
        told = f"the candidate missed more in {self.worse} of {self.worse + self.better} pairs that differ"
        return f"{told}: e = {self.value:.3g}, and {self.limit:.3g} is the limit"


def fewest_pairs(alpha: float) -> int:
    """How many pairs, all of them worse, it takes to alarm."""
    return next(n for n in range(1, 200) if e_value(n, n) >= 1.0 / alpha)
