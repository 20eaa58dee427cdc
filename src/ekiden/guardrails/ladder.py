"""The ladder: from readings to steps of the rules. A pure state machine; the caller passes the time, in seconds.

A rule on rung ``n`` has its first ``n`` actions in force.

- Up: the value is beyond the threshold for ``for_seconds`` without a break, then for ``step_seconds`` more for each
  further rung.
- Down: the value is clear for ``cooldown_seconds`` without a break, and again so long for each further rung. Each time
  that the rule comes back soon, the cool-down doubles, up to 16 times.
- Between the two thresholds nothing changes and both times begin anew, so a value that swings there moves nothing.
- From ``require_acknowledgement`` on, nothing is taken back until a person acknowledges; so too from ``go_back`` on,
  since what it takes out of force is still asked for and would come back.
- A person's override takes a rule down at once, and holds it there until it expires.
- Time that was not looked at proves nothing: after a pause of ``STALE_SECONDS``, and while a signal cannot be read, the
  times begin anew. What is in force stays.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from ekiden.guardrails.readings import SIGNALS, Reading, Readings
from ekiden.guardrails.rules import Rule, Rules

STALE_SECONDS: Final = 5.0
MOST_DOUBLINGS: Final = 4
_HOLDING: Final = frozenset({"require_acknowledgement", "go_back"})
FORGET_COOLDOWNS: Final = 32.0
"""A rule that has been down for so many cool-downs is as if it had never fired."""


class Because(StrEnum):
    """Why a rule took a step."""

    OVER = "over"
    STILL_OVER = "still over"
    CLEAR = "clear"
    OVERRIDDEN = "overridden"


class RuleState(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rule stands. ``trips`` counts how often it fired of late; ``evidence`` is that of its last step up."""

    rung: int = 0
    over_since: float | None = None
    clear_since: float | None = None
    stepped_at: float | None = None
    seen_at: float | None = None
    trips: int = 0
    evidence: Reading | None = None
    acknowledged_by: str | None = None
    overridden_until: float | None = None
    overridden_by: str | None = None

    def overridden(self, now: float) -> bool:
        return self.overridden_until is not None and now < self.overridden_until


LadderState = Mapping[str, RuleState]
"""By the names of rules; one that is missing stands on the ground. Can be stored as JSON."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Rule ``rule`` goes from rung ``before`` to rung ``after``. ``actions`` come into force, lowest first, or go out
    of it, highest first. ``reading`` is what it was decided on."""

    rule: str
    owner: str
    before: int
    after: int
    actions: tuple[str, ...]
    because: Because
    at: float
    reading: Reading
    why: str
    asks_person: bool = False
    """From this step on the rule waits for a person, who is to be told even if no ``page`` is among the actions."""

    @property
    def up(self) -> bool:
        return self.after > self.before

    @property
    def pages(self) -> bool:
        """Whether a person is to be paged because of it."""
        return self.up and (self.asks_person or "page" in self.actions)


def step(rules: Rules, state: LadderState, readings: Readings, now: float) -> tuple[dict[str, RuleState], list[Step]]:
    """Look once: the new state, and the steps that were taken, at most one for each rule."""
    after: dict[str, RuleState] = {}
    steps: list[Step] = []
    for rule in rules.rules:
        stood = state.get(rule.name, RuleState())
        after[rule.name], taken = _step_of(rule, stood, readings.get(rule.signal), now)
        if taken is not None:
            steps.append(taken)
    return after, steps


def acknowledge(state: LadderState, rule: str, who: str) -> dict[str, RuleState]:
    """A person has seen it: the rule may come down again. Raises KeyError for a rule without a state."""
    return {**state, rule: msgspec.structs.replace(state[rule], acknowledged_by=who)}


def override(state: LadderState, rule: str, who: str, until: float | None) -> dict[str, RuleState]:
    """Take a rule out of force until a time; None lets it work again. Raises KeyError for a rule without a state."""
    changed = msgspec.structs.replace(state[rule], overridden_until=until, overridden_by=None if until is None else who)
    return {**state, rule: changed}


def waits_for_person(rule: Rule, state: RuleState) -> bool:
    """Whether the rule may not come down until somebody acknowledges."""
    return state.acknowledged_by is None and not _HOLDING.isdisjoint(rule.actions[: state.rung])


def in_words(rules: Rules, state: LadderState) -> str:
    """The rungs in force, for :attr:`ekiden.state.controls.Controls.guard`; empty when there is none."""
    told = []
    for rule in rules.rules:
        stood = state.get(rule.name, RuleState())
        if stood.rung:
            subject = stood.evidence.subject if stood.evidence else None
            about = f" ({subject})" if subject else ""
            waits = ", waits for a person" if waits_for_person(rule, stood) else ""
            told.append(f"{rule.name}{about}: {', '.join(rule.actions[: stood.rung])}{waits}")
    return "; ".join(told)


def cooldown_of(rule: Rule, state: RuleState) -> float:
    """How long it must be clear before the next step down."""
    return rule.cooldown_seconds * float(2 ** min(max(state.trips - 1, 0), MOST_DOUBLINGS))


def _step_of(rule: Rule, state: RuleState, reading: Reading | None, now: float) -> tuple[RuleState, Step | None]:
    state = _timed(rule, state, reading, now)
    if state.overridden(now):
        if not state.rung:
            return state, None
        why = f"{state.overridden_by} has taken the rule out of force"
        return _move(rule, state, 0, Because.OVERRIDDEN, reading or Reading(value=None), now, why)
    if reading is None:
        return state, None
    since = -float("inf") if state.stepped_at is None else state.stepped_at
    if state.over_since is not None and state.rung < len(rule.actions):
        beyond = now - state.over_since
        if state.rung == 0 and beyond >= rule.for_seconds and now - since >= rule.step_seconds:
            return _move(rule, state, 1, Because.OVER, reading, now, _told(rule, reading, beyond))
        if state.rung and now - max(since, state.over_since) >= rule.step_seconds:
            why = _told(rule, reading, beyond)
            return _move(rule, state, state.rung + 1, Because.STILL_OVER, reading, now, why)
    if state.clear_since is not None and state.rung and not waits_for_person(rule, state):
        clear = now - max(since, state.clear_since)
        if clear >= cooldown_of(rule, state):
            why = f"{rule.signal} has been within {rule.clear_limit:g} {_unit(rule)} for {clear:.0f} s"
            return _move(rule, state, state.rung - 1, Because.CLEAR, reading, now, why)
    return state, None


def _timed(rule: Rule, state: RuleState, reading: Reading | None, now: float) -> RuleState:
    """The state with its times brought up to now."""
    fresh = state.seen_at is not None and 0.0 <= now - state.seen_at <= STALE_SECONDS
    value = None if reading is None else reading.value
    over = reading is not None and value is not None and rule.is_over(value)
    clear = reading is not None and not over and rule.is_clear(value)
    down_since = None if state.rung else state.stepped_at
    forgotten = down_since is not None and now - down_since > FORGET_COOLDOWNS * rule.cooldown_seconds
    return msgspec.structs.replace(
        state,
        over_since=(state.over_since if fresh and state.over_since is not None else now) if over else None,
        clear_since=(state.clear_since if fresh and state.clear_since is not None else now) if clear else None,
        seen_at=now,
        trips=0 if forgotten else state.trips,
    )


def _move(
    rule: Rule, state: RuleState, rung: int, because: Because, reading: Reading, now: float, why: str
) -> tuple[RuleState, Step]:
    up = rung > state.rung
    actions = rule.actions[state.rung : rung] if up else rule.actions[rung : state.rung][::-1]
    if state.rung and state.evidence is not None and state.evidence.subject is not None:
        # What it is about stays the same until it is down again.
        reading = msgspec.structs.replace(reading, subject=state.evidence.subject)
    taken = Step(
        rule=rule.name,
        owner=rule.owner,
        before=state.rung,
        after=rung,
        actions=actions,
        because=because,
        at=now,
        reading=reading,
        why=why,
        asks_person=up and not _HOLDING.isdisjoint(actions) and state.acknowledged_by is None,
    )
    moved = msgspec.structs.replace(
        state,
        rung=rung,
        stepped_at=now,
        trips=state.trips + (state.rung == 0),
        evidence=reading if up else (state.evidence if rung else None),
        acknowledged_by=state.acknowledged_by if rung and state.rung else None,
    )
    return moved, taken


def _told(rule: Rule, reading: Reading, seconds: float) -> str:
    value, side = reading.value or 0.0, "over" if rule.direction == "high" else "under"
    about = f" of {reading.subject}" if reading.subject else ""
    told = f"{rule.signal}{about} is {value:.3g} {_unit(rule)}, {side} {rule.limit:g} for {seconds:.0f} s"
    return f"{told}: {reading.evidence}" if reading.evidence else told


def _unit(rule: Rule) -> str:
    return SIGNALS[rule.signal].unit
