"""What the rungs in force ask of the engine's controls, as changes that expire unless they are renewed.

- A rule has one change in force, which replaces the one before. It holds for :data:`LEASE_SECONDS` and is renewed long
  before: a guard that dies leaves nothing in force.
- Each field belongs to the rule that raised a rung for it last. Only that rule's value is put in force and renewed, so
  that two rules which set one field do not take turns.
- A person has the last word. A value that a person sets after the guard's stands: the guard gives the field up until the
  rule that held it is down again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ekiden.state.controls import ControlChange, ControlState, ControlValue, SetBy

LEASE_SECONDS: Final = 30.0
RENEWAL_SECONDS: Final = 20.0
"""A change that has less than this left is renewed."""
WHO: Final = "guard:"
"""The guard's changes are in the names of its rules."""
Values = dict[str, ControlValue]


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule's rungs set, the lowest first, and why the newest was raised.

    ``given_up``: the fields that a person has taken over.
    """

    rule: str
    rungs: tuple[Values, ...] = ()
    why: str = ""
    given_up: frozenset[str] = frozenset()

    @property
    def values(self) -> Values:
        """A higher rung's value of a field replaces a lower one's."""
        return {name: value for rung in self.rungs for name, value in rung.items()}


class Sent(NamedTuple):
    """The change that a rule has in force, until a time of the engine's clock."""

    values: Values
    expires_at: float


def given_up(held: Held, sent: Sent | None, state: ControlState, now: float) -> frozenset[str]:
    """The fields of a rule's change that a person has set after it. ``now`` is of the engine's clock."""
    if sent is None or sent.expires_at <= now:  # what persons have set may be older
        return held.given_up
    newest = {name: change for change in state.changes for name in change.values}
    taken = {name for name in sent.values if name in newest and newest[name].set_by is SetBy.PERSON}
    return held.given_up | taken


def due(held: Sequence[Held], sent: Mapping[str, Sent], now: float) -> dict[str, Values]:
    """The rules whose change is to be sent now, each with its values; none for one that has nothing in force any more.

    ``held`` is in the order in which the rules raised their rungs; ``now`` is of the engine's clock.
    """
    asked = values_by_rule(held)
    found: dict[str, Values] = {}
    for rule in {**asked, **sent}:
        values, there = asked.get(rule, {}), sent.get(rule)
        if there is None:
            if values:
                found[rule] = values
        elif there.values != values or (values and there.expires_at < now + RENEWAL_SECONDS):
            found[rule] = values
    return found


def values_by_rule(held: Iterable[Held]) -> dict[str, Values]:
    """What each rule decides: a field that several set is that of the newest."""
    rules = list(held)
    owner = {name: each.rule for each in rules for name in each.values}
    return {
        each.rule: {
            name: value
            for name, value in each.values.items()
            if owner[name] == each.rule and name not in each.given_up
        }
        for each in rules
    }


def change_of(rule: str, values: Values, words: str, why: str, now: float) -> ControlChange:
    """The one change that a rule has in force from now on."""
    return ControlChange(
        values={**values, "guard": words},
        set_by=SetBy.SOFTWARE_RULE,
        who=WHO + rule,
        why=why,
        expires_at=now + LEASE_SECONDS,
        replaces=True,
    )
