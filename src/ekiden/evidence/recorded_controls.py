"""The controls that a run had at a time, read back from the words in which the ledger tells them."""

from typing import Any, Final

import msgspec

from ekiden.config import controls_of
from ekiden.evidence.decision_replay import config_of
from ekiden.evidence.reader import LedgerReader
from ekiden.state.controls import Controls, TenantLimits

_NOT_OBEYED: Final = ("epoch", "guard", "release", "draining")


def controls_at(reader: LedgerReader, turn: int) -> Controls:
    """The controls in force after a turn, of those that decide anything, as the ledger tells them."""
    configured = controls_of(config_of(reader.header))
    kinds = {each.name: each.type for each in msgspec.structs.fields(Controls) if each.name not in _NOT_OBEYED}
    values = {name: _value(row.value, kinds[name]) for name, row in reader.controls(turn).items() if name in kinds}
    return msgspec.structs.replace(configured, **values)


def _value(text: str, kind: Any) -> Any:
    if kind == dict[str, TenantLimits]:
        return msgspec.json.decode(text, type=dict[str, TenantLimits])
    if kind is bool:
        return text == "on"
    return None if text == "None" else msgspec.convert(text, kind, strict=False)
