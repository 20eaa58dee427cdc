"""Measured signals that limits use. Plain arithmetic on times that the caller passes in.

The engine core hands one :class:`Signals` to the stages: some feed a signal, others read it.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from math import exp, sqrt

from ekiden.measure.percentiles import whole_range


@dataclass(slots=True)
class DrainRate:
    """How many waiting requests join per second, measured while there is a queue.

    Older measurements fade out over ``horizon`` seconds.
    """

    horizon: float = 20.0
    joined: int = 0
    """The number of requests that have joined since the start."""
    _events: float = 0.0
    _seconds: float = 0.0
    _updated: float | None = None

    def observe(self, *, joined: int, backlogged: bool, now: float) -> None:
        """``backlogged``: whether requests waited during the time since the last call."""
        elapsed = 0.0 if self._updated is None else max(0.0, now - self._updated)
        self._updated = now
        self.joined += joined
        if not backlogged:
            return
        keep = exp(-elapsed / self.horizon)
        self._events = self._events * keep + joined
        self._seconds = self._seconds * keep + elapsed

    def seconds_for(self, count: int, at_most: float | None = None) -> float | None:
        """How long ``count`` waiting requests will take to join; None while nothing is known.

        ``at_most`` is an upper bound of the rate that is known from elsewhere.
        """
        rates = [] if at_most is None else [at_most]
        if self._events > 0 and self._seconds > 0:
            rates.append(self._events / self._seconds)
        return count / min(rates) if rates else None


@dataclass(slots=True)
class ServiceRate:
    """How fast those that are held back join, as a range: unlike :class:`DrainRate` it is measured only while somebody
    had been left waiting, so that it is the rate of the engine and never that of the arrivals.

    Joins are taken for clumps that come by chance and independently (a Poisson process), a clump being as many as
    joined together of late. So the time until ``k`` have joined has a gamma distribution, of whose rate the clumps seen
    so far tell an upper bound. With even service the truth lies closer to the middle than this says.
    """

    horizon: float = 20.0
    held: bool = False
    """Whether the last refill left somebody waiting."""
    _joins: float = 0.0
    _squares: float = 0.0
    _seconds: float = 0.0
    _updated: float | None = None

    def observe(self, *, joined: int, held: bool, now: float) -> None:
        """A refill let ``joined`` join. ``held``: whether it left somebody waiting."""
        elapsed = 0.0 if self._updated is None else max(0.0, now - self._updated)
        was_held, self.held, self._updated = self.held, held, now
        if was_held:
            keep = exp(-elapsed / self.horizon)
            self._joins = self._joins * keep + joined
            self._squares = self._squares * keep + joined * joined
            self._seconds = self._seconds * keep + elapsed

    def seconds_for(self, count: int) -> tuple[float, float, float] | None:
        """p10, p50 and p90 of the time until so many have joined; None while nothing is known."""
        if self._joins < 0.5 or self._seconds <= 0.0:
            return None
        clump = max(1.0, self._squares / self._joins)
        seen, wanted = self._joins / clump, max(1.0, count / clump)
        # The p90 of the rate after so many clumps: exact for none, and within 1.5% for ten or more.
        fastest = (seen + P10_SCORE * sqrt(seen + 1.0) + 1.0) / self._seconds
        least, most = gamma_quantile(wanted, -P10_SCORE), gamma_quantile(wanted, P10_SCORE)
        usual = self._seconds / seen
        return least / fastest, wanted * usual, most * usual


P10_SCORE = 1.2816
"""Standard deviations between the median and p10 or p90 of a normal distribution."""


def gamma_quantile(shape: float, score: float) -> float:
    """A quantile of the gamma distribution of scale 1, by the standard normal's (Wilson and Hilferty, "The Distribution
    of Chi-square", PNAS 1931); within 7% for shapes of 1 and more and scores of p10 to p90."""
    return float(shape * max(0.0, 1.0 - 1.0 / (9.0 * shape) + score / (3.0 * sqrt(shape))) ** 3)


@dataclass(slots=True)
class Progress:
    """How fast running answers end: the mean fraction of its answer that a sequence makes per second."""

    _shares: float = 0.0
    _answers: int = 0

    def add(self, *, made: int, expected: int, seconds: float) -> None:
        """Add an answer that has ``made`` of ``expected`` tokens ``seconds`` after its admission."""
        if made > 0 and seconds > 0.0:
            self._shares += min(1.0, made / expected) / seconds
            self._answers += 1

    def ends_per_second(self, running: int) -> float | None:
        """How many of so many running answers end per second; None while none has a token."""
        return running * self._shares / self._answers if self._shares > 0 else None


_TENANTS = 1024
_LENGTHS = 128
_ENOUGH = 10
"""Answers of a tenant from which a quantile of the next one can be told."""


@dataclass(slots=True)
class OutputLengths:
    """How long answers are likely to be, from the last finished requests of each tenant (the last 1024 tenants)."""

    _seen: "OrderedDict[str, deque[int]]" = field(default_factory=OrderedDict)
    _ranges: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def observe(self, tenant: str, num_output_tokens: int) -> None:
        """Note an answer that ended by itself or at its length limit."""
        self._seen.setdefault(tenant, deque(maxlen=_LENGTHS)).append(num_output_tokens)
        self._seen.move_to_end(tenant)
        self._ranges.pop(tenant, None)
        if len(self._seen) > _TENANTS:
            self._ranges.pop(self._seen.popitem(last=False)[0], None)

    def expect(self, tenant: str) -> tuple[int, int, int] | None:
        """p10, p50 and p90 of output tokens; None while nothing of this tenant has ended."""
        if tenant in self._seen and tenant not in self._ranges:
            self._ranges[tenant] = whole_range(self._seen[tenant])
        return self._ranges.get(tenant)

    def trusted(self, tenant: str) -> tuple[int, int, int] | None:
        """As :meth:`expect`, but None while so few have ended that the next one may well be shorter than their p10."""
        return self.expect(tenant) if len(self._seen.get(tenant, ())) >= _ENOUGH else None


@dataclass(slots=True)
class Signals:
    """All signals of one engine."""

    drain_rate: DrainRate = field(default_factory=DrainRate)
    service_rate: ServiceRate = field(default_factory=ServiceRate)
    output_lengths: OutputLengths = field(default_factory=OutputLengths)
