"""The tenants file, and the token bucket that holds a tenant to its rate.

The file is TOML; its tables are tenants, and ``[tenants.default]`` holds for all without a table of their own:

    [tenants.acme]
    weight = 2.0                    # share under `fair`
    max_num_queued_reqs = 100       # of this tenant, waiting
    max_num_queued_tokens = 50000
    tokens_per_second = 2000        # prompt tokens plus max_tokens asked for, on average
    burst_tokens = 20000            # how much may be asked for at once after a quiet time
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ekiden.config import ConfigError
from ekiden.state.controls import TenantLimits


@dataclass(slots=True)
class TokenBucket:
    """Fills at ``rate`` tokens a second up to ``capacity``; both may change. The caller passes the time."""

    level: float
    updated: float | None = None

    def take(self, amount: float, now: float, *, rate: float, capacity: float) -> float:
        """Take ``amount`` if it is there and return 0; else take nothing and return the seconds until it would be.

        More than the capacity can never be there at once: such an amount passes when the bucket is full, and
        leaves a debt that later requests wait for.
        """
        elapsed = 0.0 if self.updated is None else now - self.updated
        self.level, self.updated = min(capacity, self.level + elapsed * rate), now
        needed = min(amount, capacity)
        if self.level >= needed:
            self.level -= amount
            return 0.0
        return (needed - self.level) / rate


def load_tenants(path: str | None) -> dict[str, TenantLimits]:
    """Read the tenants file; raises :class:`ConfigError` naming the file, the table, the key and the way out."""
    if path is None:
        return {}
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("tenants", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"tenants_file {path}: {error}") from error
    if not isinstance(tables, dict):
        raise ConfigError(f"tenants_file {path}: 'tenants' must be a table of tables, one for each tenant")
    return {name: _tenant(f"tenants_file {path}: [tenants.{name}]", table) for name, table in tables.items()}


def _tenant(where: str, table: object) -> TenantLimits:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table")
    known = TenantLimits.__struct_fields__
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{where} has no setting {key!r}; known: {sorted(known)}")
        try:
            msgspec.convert({key: value}, TenantLimits)
        except msgspec.ValidationError:
            raise ConfigError(f"{where} {key} is {value!r}; it must be a number over 0") from None
    return TenantLimits(**table)
