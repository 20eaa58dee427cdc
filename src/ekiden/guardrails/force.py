"""From steps of the ladder to changes of the controls. Pure.

A rule has one change in force, under the name ``guard:<rule>``: the values of all its rungs together with the words of
all rules (:attr:`~ekiden.state.controls.Controls.guard`). It expires unless it is renewed, so that a guard that ends
leaves nothing in force. A step down gives the change anew without the last rung's values; a rule that is down has
the words alone, so that this too is recorded. What a person sets after it is the person's: a renewal leaves it out.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ekiden.guardrails.actions import Surroundings, Values, change_for
from ekiden.guardrails.ladder import Step
from ekiden.state.controls import ControlChange, Controls, ControlState, SetBy

_PREFIX: Final = "guard:"

Held = Mapping[str, tuple[Values, ...]]
"""The values of each rung in force, lowest first, by rule. Can be stored as JSON."""


def held_after(held: Held, step: Step, controls: Controls, surroundings: Surroundings) -> dict[str, tuple[Values, ...]]:
    """What the rule holds after a step. ``controls`` are those in force before it."""
    rungs = list(held.get(step.rule, ()))[: step.after]
    if step.up:
        for action in step.actions:
            values = change_for(action, controls, step.reading, surroundings) or {}
            controls = msgspec.structs.replace(controls, **values)
            rungs.append(values)
    return {**held, step.rule: tuple(rungs)}


def change_of(rule: str, held: Held, *, guard: str, why: str, expires_at: float) -> ControlChange:
    """The change that puts what a rule holds in force, in place of all that it had set before."""
    values: dict[str, Any] = {}
    for rung in held.get(rule, ()):
        values |= rung
    values["guard"] = guard
    return ControlChange(
        values=values,
        set_by=SetBy.SOFTWARE_RULE,
        who=name_of(rule),
        why=why,
        expires_at=expires_at,
        replaces=True,
    )


def renewal(state: ControlState, rule: str, *, guard: str, expires_at: float) -> ControlChange | None:
    """The rule's change that is in force, for longer; without what a person has set since. None when there is none."""
    who, found = name_of(rule), None
    for change in state.changes:
        if change.who == who:
            found = change
        elif found is not None and change.set_by is SetBy.PERSON:
            left = {name: value for name, value in found.values.items() if name not in change.values}
            found = msgspec.structs.replace(found, values=left)
    if found is None:
        return None
    values = {**found.values, "guard": guard}
    return msgspec.structs.replace(found, values=values, expires_at=expires_at, replaces=True)


def name_of(rule: str) -> str:
    """Who set it, as the ledger and ``/admin/policy`` show it."""
    return f"{_PREFIX}{rule}"


def is_guards(who: str) -> bool:
    """Whether a change is one that :func:`name_of` names."""
    return who.startswith(_PREFIX)
