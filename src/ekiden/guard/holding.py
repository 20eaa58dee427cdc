"""Which changes of the controls the rungs in force need now. Pure.

- A rule has one change in force (:mod:`ekiden.guardrails.force`). It holds for :data:`LEASE_SECONDS` and is renewed
  long before: a guard that dies leaves nothing in force.
- Each field belongs to the rule that raised a rung for it last. Only that rule's value is put in force and renewed, so
  that two rules which set one field do not take turns.
- A person has the last word. A value that a person sets after the guard's stands: the guard gives the field up until
  the rule that held it is down again.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ekiden.guardrails.actions import Values
from ekiden.guardrails.force import Held
from ekiden.state.controls import ControlState, SetBy

LEASE_SECONDS: Final = 30.0
RENEWAL_SECONDS: Final = 20.0
"""A change that has less than this left is renewed."""

GivenUp = Mapping[str, tuple[str, ...]]
"""The fields that persons have taken over, by the rule that held them."""


class Sent(NamedTuple):
    """The change that a rule has in force, until a time of the engine's clock."""

    values: Values
    expires_at: float


def taken_over(sent: Mapping[str, Sent], state: ControlState, now: float) -> dict[str, tuple[str, ...]]:
    """The fields of each rule's change that a person has set after it. ``now`` is of the engine's clock."""
    newest = {name: change for change in state.changes for name in change.values}
    found: dict[str, tuple[str, ...]] = {}
    for rule, there in sent.items():
        if there.expires_at > now:  # else what persons have set may be older
            taken = (name for name in there.values if name in newest and newest[name].set_by is SetBy.PERSON)
            found[rule] = tuple(taken)
    return {rule: names for rule, names in found.items() if names}


def due(held: Held, given_up: GivenUp, sent: Mapping[str, Sent], now: float) -> dict[str, Values]:
    """The rules whose change is to be sent now, each with its values; none for one that has nothing in force any more.

    ``held`` is in the order in which the rules raised their rungs; ``now`` is of the engine's clock.
    """
    asked = values_by_rule(held, given_up)
    found: dict[str, Values] = {}
    for rule in {**asked, **sent}:
        values, there = asked.get(rule, {}), sent.get(rule)
        if there is None:
            if values:
                found[rule] = values
        elif there.values != values or (values and there.expires_at < now + RENEWAL_SECONDS):
            found[rule] = values
    return found


def values_by_rule(held: Held, given_up: GivenUp) -> dict[str, Values]:
    """What each rule decides: a field that several set is that of the newest."""
    merged = {rule: _merged(rungs) for rule, rungs in held.items()}
    owner = {name: rule for rule, values in merged.items() for name in values}
    return {
        rule: {
            name: value for name, value in values.items() if owner[name] == rule and name not in given_up.get(rule, ())
        }
        for rule, values in merged.items()
    }


def raised(held: Held, rule: str) -> dict[str, tuple[Values, ...]]:
    """The same with one rule as the newest."""
    return {**{name: rungs for name, rungs in held.items() if name != rule}, rule: held[rule]}


def _merged(rungs: Iterable[Values]) -> Values:
    """A higher rung's value of a field replaces a lower one's."""
    return {name: value for rung in rungs for name, value in rung.items()}
