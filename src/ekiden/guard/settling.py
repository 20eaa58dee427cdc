"""What the guard and persons decided comes into force, and into the ledger, as far as the engine answers.

A change of the controls holds for :data:`~ekiden.guard.holding.LEASE_SECONDS` and is renewed while its rule holds. What
changes nothing, such as a page or an acknowledgement, is recorded as a change of the guard's words alone. While the
engine gives no answer, decisions wait for the next one, and are then recorded with how late.
"""

import logging
from collections.abc import Callable
from typing import Final

from ekiden.guard.hands import Hands, NoAnswer
from ekiden.guard.holding import LEASE_SECONDS, Sent, due, taken_over
from ekiden.guard.kept import GUARD, Decision, Kept
from ekiden.guardrails.actions import Values
from ekiden.guardrails.force import change_of, name_of
from ekiden.state.controls import ControlChange, InvalidControls, SetBy

logger = logging.getLogger(__name__)

_LATE_SECONDS: Final = 10.0


class Settling:
    """``acts``: whether rules change the engine, or are only recorded. ``words``: what is in force, for people.

    ``clock`` gives Unix time, ``engine_clock`` the engine's. Whoever calls holds the guard's lock.
    """

    def __init__(
        self,
        kept: Kept,
        hands: Hands,
        *,
        acts: bool,
        words: Callable[[], str],
        clock: Callable[[], float],
        engine_clock: Callable[[], float],
    ) -> None:
        self._kept, self.hands, self._acts, self._words = kept, hands, acts, words
        self._clock, self._engine_clock = clock, engine_clock
        self._sent: dict[str, Sent] = {}
        self._refused: dict[str, Values] = {}

    def give_way(self) -> None:
        """Leave to persons what they have set since the guard did."""
        kept = self._kept
        for rule, names in taken_over(self._sent, self.hands.controls(), self._engine_clock()).items():
            already = kept.given_up.get(rule, ())
            if rule in kept.held and (new := [name for name in names if name not in already]):
                kept.given_up[rule] = (*already, *new)
                why = f"a person has set {', '.join(new)} since, which stands"
                kept.note(at=self._clock(), what="gives way", why=why, who=GUARD, rule=rule)

    def settle(self) -> None:
        """Put in force and record what was decided; what has no answer stays for the next time."""
        try:
            self._settle()
        except NoAnswer as error:
            logger.info("guard: the engine gives no answer (%s); what was decided waits for it", error)

    def _settle(self) -> None:
        kept, now = self._kept, self._engine_clock()
        wanted = due(kept.held, kept.given_up, self._sent, now) if self._acts else {}
        newest = {decision.rule: decision.number for decision in kept.unrecorded if not decision.person}
        for decision in tuple(kept.unrecorded):
            rule, why = decision.rule, self._reason(decision)
            if rule in wanted and newest.get(rule) == decision.number:
                self._put(rule, wanted.pop(rule), why, now)
            else:
                self._record(decision, why, now)
            kept.unrecorded = [each for each in kept.unrecorded if each is not decision]
        for rule, values in wanted.items():
            state = kept.ladder.get(rule)
            evidence = state.evidence.evidence if state is not None and state.evidence else ""
            self._put(rule, values, f"still in force: {evidence}", now)

    def _reason(self, decision: Decision) -> str:
        late = self._clock() - decision.at
        when = f" (decided {late:.0f} s ago, while no engine could record it)" if late > _LATE_SECONDS else ""
        return f"{decision.what}: {decision.why}{when}"

    def _put(self, rule: str, values: Values, why: str, now: float) -> None:
        expires = now + LEASE_SECONDS
        change = change_of(rule, {rule: (values,)}, guard=self._words(), why=why, expires_at=expires)
        try:
            self.hands.apply(change)
        except InvalidControls as error:
            if self._refused.get(rule) != values:
                self._refused[rule] = values
                what = "could not be put in force"
                self._kept.note(at=self._clock(), what=what, why=str(error), who=GUARD, rule=rule)
                logger.error("guard: the change of rule %s cannot work: %s", rule, error)
        if values:
            self._sent[rule] = Sent(values, expires)
        else:
            self._sent.pop(rule, None)

    def _record(self, decision: Decision, why: str, now: float) -> None:
        """A decision that changes nothing else, in the ledger."""
        set_by = SetBy.PERSON if decision.person else SetBy.SOFTWARE_RULE
        who = decision.who if decision.person else name_of(decision.rule) if decision.rule else decision.who
        about = f"{decision.rule}: " if decision.rule and decision.person else ""
        self.hands.apply(
            ControlChange(
                values={"guard": self._words()}, set_by=set_by, who=who, why=about + why, expires_at=now + LEASE_SECONDS
            )
        )
