"""Measured signals that limits use. Plain arithmetic on times that the caller passes in.

The engine core hands one :class:`Signals` to the stages: some feed a signal, others read it.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from math import exp

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


@dataclass(slots=True)
class Signals:
    """All signals of one engine."""

    drain_rate: DrainRate = field(default_factory=DrainRate)
    output_lengths: OutputLengths = field(default_factory=OutputLengths)
