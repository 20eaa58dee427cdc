"""Measured signals on which limits act. Plain arithmetic over times that the caller hands in."""

from dataclasses import dataclass
from math import exp


@dataclass(slots=True)
class DrainRate:
    """How many waiting requests join a second, measured while there is a queue, forgetting over ``horizon`` seconds."""

    horizon: float = 20.0
    _events: float = 0.0
    _seconds: float = 0.0
    _updated: float | None = None

    def observe(self, *, joined: int, backlogged: bool, now: float) -> None:
        """``backlogged``: whether requests waited during the time since the last call."""
        elapsed = 0.0 if self._updated is None else max(0.0, now - self._updated)
        self._updated = now
        if not backlogged:
            return
        keep = exp(-elapsed / self.horizon)
        self._events = self._events * keep + joined
        self._seconds = self._seconds * keep + elapsed

    @property
    def per_second(self) -> float | None:
        """None until something was measured."""
        return self._events / self._seconds if self._events > 0 and self._seconds > 0 else None

    def seconds_for(self, count: int) -> float | None:
        """How long ``count`` waiting requests will take to join; None while nothing is known."""
        rate = self.per_second
        return None if rate is None else count / rate
