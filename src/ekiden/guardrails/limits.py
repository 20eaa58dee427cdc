"""Limits of tenants: their share, their place in the queue, and how many tokens a second they may ask for.

Read from a TOML file whose tables are tenants; ``[tenants.default]`` holds for everybody without a table of their own:

    [tenants.acme]
    weight = 2.0                    # share under `fair`
    max_num_queued_reqs = 100       # of this tenant, waiting
    max_num_queued_tokens = 50000
    tokens_per_second = 2000        # prompt tokens plus max_tokens asked for, on average
    burst_tokens = 20000            # how much may be asked for at once after a quiet time
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from ekiden.config import ConfigError
from ekiden.state.request import DEFAULT_TENANT


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    weight: float = 1.0
    max_num_queued_reqs: float = float("inf")
    max_num_queued_tokens: float = float("inf")
    tokens_per_second: float = float("inf")
    burst_tokens: float = float("inf")


@dataclass(slots=True)
class TokenBucket:
    """Fills at ``rate`` tokens a second up to ``capacity``. The clock is the caller's."""

    rate: float
    capacity: float
    level: float = field(init=False)
    updated: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.level = self.capacity

    def take(self, amount: float, now: float) -> float:
        """Take ``amount`` if it is there and return 0; else take nothing and return the seconds until it would be.

        More than the capacity can never be there at once: such an amount passes when the bucket is full, and
        leaves a debt that later requests wait for.
        """
        if self.updated is not None:
            self.level = min(self.capacity, self.level + (now - self.updated) * self.rate)
        self.updated = now
        needed = min(amount, self.capacity)
        if self.level >= needed:
            self.level -= amount
            return 0.0
        return (needed - self.level) / self.rate


@dataclass(frozen=True, slots=True)
class Tenants:
    """All configured tenants; unknown ones get the default's limits."""

    by_name: Mapping[str, TenantLimits] = field(default_factory=dict)

    def limits(self, name: str) -> TenantLimits:
        return self.by_name.get(name) or self.by_name.get(DEFAULT_TENANT) or TenantLimits()

    def weight(self, name: str) -> float:
        return self.limits(name).weight

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.by_name)


def load_tenants(path: str | None) -> Tenants:
    """Read the tenants file; raises :class:`ConfigError` naming the file, the key and what is allowed."""
    if path is None:
        return Tenants()
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("tenants", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"tenants_file {path}: {error}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"tenants_file {path}: 'tenants' must be a table of tables, one for each tenant")
    return Tenants({name: _tenant(path, name, values) for name, values in table.items()})


def _tenant(path: str, name: str, values: object) -> TenantLimits:
    if not isinstance(values, dict):
        raise ConfigError(f"tenants_file {path}: [tenants.{name}] must be a table")
    known = {item.name for item in fields(TenantLimits)}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"tenants_file {path}: [tenants.{name}] has no setting {key!r}; known: {sorted(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ConfigError(f"tenants_file {path}: [tenants.{name}] {key} is {value!r}; it must be a number over 0")
    rate = values.get("tokens_per_second")
    if rate is not None:
        values = {"burst_tokens": 10 * rate, **values}
    return TenantLimits(**values)
