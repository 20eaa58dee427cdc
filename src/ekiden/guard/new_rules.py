"""What becomes of the guard's state under rules that were read again. Pure, but for the decisions that it notes.

A rule that is as it was goes on where it stands. One that was changed begins on the ground, as what it did was decided
by something else: what it holds goes at once, and comes back where the new rule asks for it. A person's override of it
stays. One that is gone leaves nothing in force.
"""

import msgspec

from ekiden.guard.approvals import withdrawn
from ekiden.guard.kept import ACKNOWLEDGE, GUARD, Kept
from ekiden.guardrails.ladder import RuleState
from ekiden.guardrails.rules import Rules


def take_up(kept: Kept, old: Rules, new: Rules, now: float) -> str:
    """Go on under the new rules; returns in words what they change. ``now`` is Unix time."""
    was = {rule.name: rule for rule in old.rules}
    there = {rule.name: rule for rule in new.rules}
    other = [name for name, rule in was.items() if there.get(name) != rule]
    for name in other:
        _let_go(kept, name, now)
    kept.ladder = {name: _state(kept, name, anew=name in other) for name in there}
    told = {
        "added": [name for name in there if name not in was],
        "changed": [name for name in other if name in there],
        "removed": [name for name in other if name not in there],
    }
    words = [f"{verb} {', '.join(names)}" for verb, names in told.items() if names]
    if new.objectives != old.objectives:
        words.append("changed the objectives")
    return "; ".join(words) or "nothing has changed"


def _let_go(kept: Kept, name: str, now: float) -> None:
    state = kept.ladder.get(name, RuleState())
    kept.held.pop(name, None)
    kept.given_up.pop(name, None)
    kept.approvals = withdrawn(kept.approvals, ACKNOWLEDGE, name)
    if state.rung:
        what = f"lowered from rung {state.rung} to 0"
        kept.note(at=now, what=what, why="its rule was changed or removed", who=GUARD, rule=name)


def _state(kept: Kept, name: str, *, anew: bool) -> RuleState:
    state = kept.ladder.get(name, RuleState())
    if not anew:
        return state
    kept_of_it = {field: getattr(state, field) for field in ("overridden_until", "overridden_by")}
    return msgspec.structs.replace(RuleState(), **kept_of_it)
