"""Which changes of the controls one person may make where the guard needs two (``--two-person``), and what two have
agreed on. Pure.

One is enough for what only makes things safer and must not wait for anybody:

- to close the server to newcomers (``draining``);
- to give a control its configured value back; but not while the guard holds that control, as this overrides the guard;
- to try and to take back what a release does, once a second person has let that release set it
  (:attr:`~ekiden.guard.approvals.Approval.lets_release`): it goes back by itself, and at any hour;
- the words of a release, which nothing obeys.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from ekiden.config import ConfigError, check_controls
from ekiden.guard.approvals import Approval, Approvals
from ekiden.guardrails.force import is_guards
from ekiden.state.controls import (
    ControlChange,
    Controls,
    ControlValue,
    InvalidControls,
    SetBy,
    typed_values,
)

POLICY: Final = "policy"
_MOST_CHARACTERS: Final = 60


def beyond_one(
    values: Mapping[str, Any], changes: Iterable[ControlChange], configured: Controls, approvals: Approvals
) -> list[str]:
    """The controls among ``values`` that one person may not set so. ``changes``: those in force, oldest first."""
    held = {name: is_guards(change.who) for change in changes for name in change.values}
    usual = msgspec.to_builtins(configured)
    let = [each.values for each in approvals.all if each.lets_release]

    def alone(name: str, value: Any) -> bool:
        if name == "release" or (name, value) == ("draining", True):
            return True
        return (value == usual[name] and not held.get(name)) or any(value in each.get(name, ()) for each in let)

    return [name for name, value in msgspec.to_builtins(values).items() if not alone(name, value)]


def check(values: Mapping[str, ControlValue], controls: Controls, block_size: int) -> None:
    """Raise :class:`InvalidControls` for what could not be put in force now: nobody need be asked for that."""
    try:
        check_controls(msgspec.structs.replace(controls, **values), block_size)
    except ConfigError as error:
        raise InvalidControls(str(error)) from error


def agreed_change(approval: Approval, who: str, why: str, now: float) -> ControlChange:
    """The change that ``who`` has now approved as the last. ``now`` is of the engine's clock; a change that is to end
    holds from here on."""
    seconds = approval.details.get("seconds")
    return ControlChange(
        values=typed_values(approval.values),
        set_by=SetBy.PERSON,
        who=approval.asked_by,
        why=f"{approval.why} (approved by {who}: {why})",
        expires_at=now + seconds if isinstance(seconds, float | int) else None,
    )


def in_words(values: Mapping[str, Any], seconds: float | None) -> str:
    """A change as a person asks for it, such as ``max_num_seqs=16 for 600 s``."""
    told = [f"{name}={_short(value)}" for name, value in msgspec.to_builtins(values).items()]
    return ", ".join(told) + (f" for {seconds:g} s" if seconds is not None else "")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."
