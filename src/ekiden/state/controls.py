"""The rules that the scheduler works by, as one value, and the changes made to it while the engine runs.

- :class:`Controls` is immutable. A change makes a new one with the next epoch, at a boundary between steps.
- A change names the fields that it sets, who asked for it and why, and perhaps when it expires.
- A field has the value of the newest change that has not expired, else the configured one. So the expiry of one change
  never undoes another, and a change without an end replaces all that set its fields before.
- A change that cannot work is refused before anything is changed. So is one that could not work together with what is
  left when another expires.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from ekiden.state.request import DEFAULT_TENANT


class InvalidControls(ValueError):
    """Controls that cannot work; the message names the field, its value and the way out."""


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant's share of the service under `fair`, and its limits; None for no limit.

    ``tokens_per_second`` counts prompt tokens plus the ``max_tokens`` asked for, on average; ``burst_tokens`` may be
    asked for at once after a quiet time, ten seconds' worth unless it is given.
    """

    weight: float = 1.0
    max_num_queued_reqs: float | None = None
    max_num_queued_tokens: float | None = None
    tokens_per_second: float | None = None
    burst_tokens: float | None = None

    def __post_init__(self) -> None:
        for name, value in msgspec.structs.asdict(self).items():
            if value is not None and not value > 0:
                raise InvalidControls(f"{name} is {value!r}; it must be a number over 0")


_UNLIMITED: Final = TenantLimits()


class Controls(msgspec.Struct, frozen=True, kw_only=True):
    """What the stages and policies obey. :mod:`ekiden.config` says what each setting means, and has the defaults."""

    batching: str
    scheduling_policy: str
    batch_window_ms: float
    max_num_seqs: int
    max_num_batched_tokens: int
    max_concurrent_prefills: int
    target_itl_ms: float | None
    prefill_first: bool
    max_overtakes: int
    ageing_seconds: float
    default_deadline_seconds: float
    fair_prompt_weight: float
    fair_cached_weight: float
    fair_output_weight: float
    max_num_queued_reqs: int
    max_num_queued_tokens: int
    max_queue_seconds: float | None
    abstain: bool
    num_speculative_tokens: int = 0
    tenants: dict[str, TenantLimits] = {}
    draining: bool = False
    """Whether newcomers are refused."""
    guard: str = ""
    """What the guard holds in force or has just decided, in words; nothing obeys it, and the ledger has it."""
    release: str = ""
    """The state of a release that goes on, in words; nothing obeys it either."""
    epoch: int = 0

    def limits_of(self, tenant: str) -> TenantLimits:
        """Tenants without limits of their own have those of the tenant called ``default``."""
        return self.tenants.get(tenant) or self.tenants.get(DEFAULT_TENANT) or _UNLIMITED

    @property
    def target_seconds(self) -> float | None:
        """How long a step with decodes in it may take; None for no target."""
        return self.target_itl_ms / 1000 if self.target_itl_ms else None


_TYPES: Final = {item.name: item.type for item in msgspec.structs.fields(Controls) if item.name != "epoch"}


class SetBy(StrEnum):
    """Who put a control in force."""

    CONFIGURATION = "configuration"
    SOFTWARE_RULE = "software_rule"
    PERSON = "person"


ControlValue = str | int | float | bool | None | dict[str, TenantLimits]


class ControlChange(msgspec.Struct, frozen=True, kw_only=True):
    """New values for some fields of :class:`Controls`.

    ``who``: the name of the person's key, of the software rule, or of what was read. ``expires_at`` is a time on the
    engine's clock. ``replaces``: all that the same ``who`` has set before goes out of force with it, also fields that
    it does not name. So a software rule has one change in force, which it renews, extends and takes back.
    """

    values: dict[str, ControlValue]
    set_by: SetBy
    who: str
    why: str = ""
    expires_at: float | None = None
    replaces: bool = False

    def replaces_all_of(self, older: "ControlChange") -> bool:
        return self.replaces and (self.who, self.set_by) == (older.who, older.set_by)


class SetField(NamedTuple):
    """One field that was set, with the change that set it: what the ledger records."""

    name: str
    old: ControlValue
    new: ControlValue
    change: ControlChange


class ControlState(msgspec.Struct, frozen=True, kw_only=True):
    """The controls in force, and the changes that made them differ from the configured ones, oldest first."""

    controls: Controls
    changes: list[ControlChange] = []

    def changes_at(self, now: float) -> list[ControlChange]:
        """Those that have not expired at a time of the engine's clock. An engine does not report an expiry that changes
        no value."""
        return _unexpired(self.changes, now)


def standing(changes: Iterable[ControlChange], newer: ControlChange) -> list[ControlChange]:
    """The changes together with a newer one, without the values that it replaces for good."""
    changes = [change for change in changes if not newer.replaces_all_of(change)]
    if newer.expires_at is not None:
        return [*changes, newer]
    kept = [
        msgspec.structs.replace(change, values={k: v for k, v in change.values.items() if k not in newer.values})
        for change in changes
    ]
    return [*(change for change in kept if change.values), newer]


class ControlsInForce:
    """Holds the controls that the stages read.

    ``check`` raises :class:`InvalidControls` for what the loaded model rules out.
    """

    def __init__(self, configured: Controls, check: Callable[[Controls], None] = lambda controls: None) -> None:
        self.now = configured
        self._configured = configured
        self._check = check
        self._changes: list[ControlChange] = []

    @property
    def state(self) -> ControlState:
        return ControlState(controls=self.now, changes=self._changes)

    @property
    def next_expiry(self) -> float | None:
        return min((c.expires_at for c in self._changes if c.expires_at is not None), default=None)

    def apply(self, change: ControlChange, now: float) -> list[SetField]:
        """Put a change in force. Raises :class:`InvalidControls`, and then nothing has changed."""
        change = msgspec.structs.replace(change, values=typed_values(change.values))
        if change.expires_at is not None and not change.expires_at > now:
            raise InvalidControls(f"expires_at is {change.expires_at}, which is past; give a time after {now}")
        changes = standing(self._changes, change)
        ends = sorted({c.expires_at for c in changes if c.expires_at is not None})
        for end in (now, *ends):
            self._check(self._with(_unexpired(changes, end)))
        replaced = {name for older in self._changes if change.replaces_all_of(older) for name in older.values}
        before, self.now, self._changes = self.now, self._with(changes), changes
        fields = [SetField(name, getattr(before, name), value, change) for name, value in change.values.items()]
        for name in sorted(replaced - change.values.keys()):
            old, new = getattr(before, name), getattr(self.now, name)
            if old != new:
                fields.append(SetField(name, old, new, change))
        return fields

    def expire(self, now: float) -> list[SetField]:
        """Take what has expired out of force; returns the fields whose values changed by that."""
        left = _unexpired(self._changes, now)
        if len(left) == len(self._changes):
            return []
        before, after = self.now, self._with(left)
        newest = {name: change for change in self._changes if change not in left for name in change.values}
        self._changes = left
        fields: list[SetField] = []
        for name in sorted(newest):
            old, new = getattr(before, name), getattr(after, name)
            if old != new:
                why = f"what {newest[name].who} had set was to hold until now"
                expired = ControlChange(values={name: new}, set_by=SetBy.SOFTWARE_RULE, who="expired", why=why)
                fields.append(SetField(name, old, new, expired))
        if fields:
            self.now = after
        return fields

    def _with(self, changes: Iterable[ControlChange]) -> Controls:
        """The controls with these changes in force, oldest first, as the next epoch."""
        values: dict[str, ControlValue] = {}
        for change in changes:
            values |= change.values
        return msgspec.structs.replace(self._configured, **values, epoch=self.now.epoch + 1)


def typed_values(values: Mapping[str, object]) -> dict[str, ControlValue]:
    """The values as fields of :class:`Controls` have them; raises :class:`InvalidControls` naming the field."""
    if not values:
        raise InvalidControls("no field is named; name at least one")
    typed: dict[str, ControlValue] = {}
    for name, value in values.items():
        if name not in _TYPES:
            raise InvalidControls(f"{name} cannot be changed while the engine runs; these can: {', '.join(_TYPES)}")
        try:
            typed[name] = msgspec.convert(value, _TYPES[name])
        except msgspec.ValidationError as error:
            raise InvalidControls(f"{name} is {value!r}: {error}") from None
    return typed


def _unexpired(changes: Iterable[ControlChange], now: float) -> list[ControlChange]:
    return [change for change in changes if change.expires_at is None or change.expires_at > now]
