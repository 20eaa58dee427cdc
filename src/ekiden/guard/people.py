"""What persons do to the guard: acknowledge, override, pause, resume, approve. Each act names the person and the
reason, is in the ledger like the guard's own decisions, and can be undone: an override and a pause end, by themselves
or by the person who ends them.

Where the guard needs two persons, an override, a pause or a change of policy is asked for by one and comes into force
when another one, with a key of another name, approves; an acknowledgement needs two. To end an override or a pause one
is enough, as that puts back what the rules say; so it is for some changes of policy (:mod:`ekiden.guard.policy`).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from ekiden.guard.approvals import (
    ASKED_SECONDS,
    RELEASE,
    Approval,
    ApprovalError,
    ApprovalState,
    opened,
    voiced,
    withdrawn,
)
from ekiden.guard.kept import ACKNOWLEDGE, Pause
from ekiden.guard.paging import as_object
from ekiden.guard.policy import POLICY, agreed_change, beyond_one, check, in_words
from ekiden.guard.runtime import Guard
from ekiden.guardrails.ladder import acknowledge, override, waits_for_person
from ekiden.state.controls import ControlValue, InvalidControls, typed_values

OVERRIDE: Final = "override"
PAUSE: Final = "pause"
OWN_KINDS: Final = (ACKNOWLEDGE, OVERRIDE, PAUSE, POLICY)
ALL_RULES: Final = "all rules"
SHOWN_DECISIONS: Final = 30

Told = TypeVar("Told")


class People:
    """The persons' side of a guard. Every method may wait for the engine, and is called on a thread that may."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    @property
    def two_person(self) -> bool:
        return self._guard.two_person

    # --- what they see

    def view(self) -> dict[str, Any]:
        """The guard's state, as an object for JSON."""
        with self._guard.lock:
            return self._view()

    def view_within(self, seconds: float) -> dict[str, Any] | None:
        """The same; None when the guard is busy for longer, as while it waits for an engine."""
        if not self._guard.lock.acquire(timeout=seconds):
            return None
        try:
            return self._view()
        finally:
            self._guard.lock.release()

    def _view(self) -> dict[str, Any]:
        guard = self._guard
        kept, now = guard.kept, guard.clock()
        kept.expire(now)
        return {
            "mode": guard.mode,
            "state": guard.state,
            "failure": guard.failure or None,
            "two_person": guard.two_person,
            "in_force": guard.words,
            "paused": None if kept.paused is None else msgspec.to_builtins(kept.paused),
            "rules": [self._rule(rule.name, now) for rule in guard.rules.rules],
            "pages": {
                "channels": guard.pager.channels,
                "sent": guard.pager.sent_total,
                "given_up": guard.pager.given_up_total,
                "waiting": as_object(guard.pager.waiting()),
            },
            "approvals": [self._approval(each) for each in kept.approvals.all if each.open],
            "decisions": msgspec.to_builtins(kept.decisions[: -SHOWN_DECISIONS - 1 : -1]),
            "unrecorded": len(kept.unrecorded),
        }

    def _rule(self, name: str, now: float) -> dict[str, Any]:
        guard = self._guard
        rule, state = guard.rules.named(name), guard.kept.ladder[name]
        reading = guard.readings.get(rule.signal)
        return {
            "rule": name,
            "owner": rule.owner,
            "signal": rule.signal,
            "value": None if reading is None else reading.value,
            "threshold": rule.limit,
            "clear_threshold": rule.clear_limit,
            "evidence": "" if reading is None else reading.evidence,
            "rung": state.rung,
            "actions": list(rule.actions),
            "in_force": list(rule.actions[: state.rung]),
            "given_up": list(guard.kept.given_up.get(name, ())),
            "waits_for_person": waits_for_person(rule, state),
            "acknowledged_by": state.acknowledged_by,
            "overridden_by": state.overridden_by if state.overridden(now) else None,
            "override_ends_in_seconds": state.overridden_until - now
            if state.overridden_until is not None and state.overridden(now)
            else None,
        }

    @staticmethod
    def _approval(approval: Approval) -> dict[str, Any]:
        told: dict[str, Any] = msgspec.to_builtins(approval)
        return told | {"lacking": approval.lacking}

    def approvals(self) -> list[dict[str, Any]]:
        """All of them, the newest first."""
        with self._guard.lock:
            self._guard.kept.expire(self._guard.clock())
            return [self._approval(each) for each in reversed(self._guard.kept.approvals.all)]

    # --- what they do; each raises ApprovalError

    def acknowledge(self, rule: str, who: str, why: str) -> dict[str, Any]:
        """A person has seen what a rule did, which may come down from now on."""

        def act(now: float) -> Approval:
            self._known(rule)
            there = self._guard.kept.approvals.open_for(ACKNOWLEDGE, rule)
            if there is None:
                raise ApprovalError(f"rule {rule} waits for no acknowledgement")
            return self._voice(there.id, who, why, now, yes=True)

        return self._approval(self._do(act))

    def override(self, rule: str, seconds: float, who: str, why: str) -> dict[str, Any]:
        """Take a rule out of force for so long."""

        def act(now: float) -> Approval:
            self._known(rule)
            return self._ask(OVERRIDE, rule, who, why, now, {"seconds": seconds})

        return self._approval(self._do(act))

    def end_override(self, rule: str, who: str, why: str) -> None:
        def act(now: float) -> None:
            self._known(rule)
            kept = self._guard.kept
            if not kept.ladder[rule].overridden(now):
                raise ApprovalError(f"rule {rule} is not overridden")
            kept.ladder = override(kept.ladder, rule, who, None)
            kept.note(at=now, what="override ended", why=why, who=who, rule=rule, person=True)

        self._do(act)

    def pause(self, seconds: float | None, who: str, why: str) -> dict[str, Any]:
        """Take all rules out of force, for so long or until somebody lets them work again."""
        return self._approval(self._do(lambda now: self._ask(PAUSE, ALL_RULES, who, why, now, {"seconds": seconds})))

    def resume(self, who: str, why: str) -> None:
        def act(now: float) -> None:
            kept = self._guard.kept
            if kept.paused is None:
                raise ApprovalError("the guard is not paused")
            kept.paused = None
            kept.note(at=now, what="resumed", why=why, who=who, person=True)

        self._do(act)

    def needs_second(self, values: Mapping[str, Any]) -> list[str]:
        """The controls that one person may not set to these values; all may where one is enough. Raises
        :class:`InvalidControls`."""
        guard, typed = self._guard, typed_values(values)
        if not guard.two_person:
            return []
        with guard.lock:
            changes = guard.hands.controls().changes_at(guard.engine_clock())
            return beyond_one(typed, changes, guard.configured, guard.kept.approvals)

    def set_policy(self, values: Mapping[str, Any], seconds: float | None, who: str, why: str) -> dict[str, Any] | None:
        """Ask a second person for a change of the controls, which holds for so long from the approval on; None where
        nobody need be asked. Raises :class:`InvalidControls` for what cannot work."""
        if not (names := self.needs_second(values)):
            return None
        if "release" in values:
            told = ", ".join(names)
            raise ApprovalError(
                f"a second person must let a release set {told}; `ekiden release start PLAN` asks for it"
            )
        typed, guard = typed_values(values), self._guard
        check(typed, guard.hands.controls().controls, guard.around.block_size)
        words = in_words(typed, seconds)
        details: dict[str, str | float | None] = {"seconds": seconds}
        return self._approval(self._do(lambda now: self._ask(POLICY, words, who, why, now, details, typed)))

    def open(self, kind: str, subject: str, who: str, why: str, *, needed: int | None = None) -> dict[str, Any]:
        """Ask for an approval of something outside the guard, such as a release. Whoever asks has not approved it."""

        def act(now: float) -> Approval:
            if kind in OWN_KINDS:
                raise ApprovalError(f"approvals of kind {kind} are opened by what they are for")
            kept, guard = self._guard.kept, self._guard
            kept.approvals, asked = opened(
                kept.approvals, kind=kind, subject=subject, asked_by=who, why=why, at=now, person=False,
                needed=max(needed or 1, 1 + guard.two_person),
            )  # fmt: skip
            kept.note(at=now, what=f"asks for approval {asked.id} of {kind} {subject}", why=why, who=who, person=True)
            return asked

        return self._approval(self._do(act))

    def let_release(self, subject: str, values: Mapping[str, list[Any]], who: str, why: str) -> dict[str, Any]:
        """Ask that a release may give each control these values, as often as it needs to, until it is withdrawn. The
        one that was given, or is asked for, is returned as it is. Raises :class:`InvalidControls`."""
        typed = {name: [typed_values({name: value})[name] for value in each] for name, each in values.items()}
        allowed: dict[str, Any] = msgspec.to_builtins(typed)

        def act(now: float) -> Approval:
            kept = self._guard.kept
            there = kept.approvals.newest_for(RELEASE, subject)
            if there is not None and there.values == allowed and (there.open or there.lets_release):
                return there
            kept.approvals = withdrawn(kept.approvals, RELEASE, subject)
            kept.approvals, asked = opened(
                kept.approvals, kind=RELEASE, subject=subject, asked_by=who, why=why, at=now, person=True,
                needed=1 + self._guard.two_person, values=allowed,
            )  # fmt: skip
            told = ", ".join(f"{name} to {each}" for name, each in allowed.items())
            what = f"asks that release {subject} may set {told} (approval {asked.id})"
            kept.note(at=now, what=what, why=why, who=who, person=True)
            return asked

        return self._approval(self._do(act))

    def withdraw(self, wanted: str, who: str, why: str) -> dict[str, Any]:
        """What an approval was asked for is over."""

        def act(now: float) -> Approval:
            kept = self._guard.kept
            there = kept.approvals.find(wanted)
            if there.kind in OWN_KINDS or not (there.open or there.lets_release):
                raise ApprovalError(f"approval {wanted} ({there.kind}, {there.state.value}) cannot be withdrawn")
            kept.approvals = withdrawn(kept.approvals, there.kind, there.subject)
            kept.note(at=now, what=f"withdrew approval {wanted}", why=why, who=who, person=True)
            return kept.approvals.find(wanted)

        return self._approval(self._do(act))

    def approve(self, wanted: str, who: str, why: str, *, yes: bool = True) -> dict[str, Any]:
        """One person's yes or no."""
        return self._approval(self._do(lambda now: self._voice(wanted, who, why, now, yes=yes)))

    # --- inside

    def _do(self, act: Callable[[float], Told]) -> Told:
        guard = self._guard
        with guard.lock:
            now = guard.clock()
            guard.kept.expire(now)
            result = act(now)
            guard.decide(now)
        return result

    def _known(self, rule: str) -> None:
        names = list(self._guard.kept.ladder)
        if rule not in names:
            there = f"the rules are {', '.join(names)}" if names else "the guard is off: start with --guard act"
            raise ApprovalError(f"there is no rule {rule!r}; {there}", known=False)

    def _ask(
        self,
        kind: str,
        subject: str,
        who: str,
        why: str,
        now: float,
        details: dict[str, str | float | None],
        values: Mapping[str, ControlValue] | None = None,
    ) -> Approval:
        kept, needed = self._guard.kept, 1 + self._guard.two_person
        if kept.approvals.open_for(kind, subject) is not None:
            there = kept.approvals.open_for(kind, subject)
            raise ApprovalError(f"approval {there.id if there else ''} of the same waits already; approve that")
        kept.approvals, asked = opened(
            kept.approvals, kind=kind, subject=subject, asked_by=who, why=why, at=now, needed=needed, person=True,
            details=details, values=msgspec.to_builtins(values or {}), until=now + ASKED_SECONDS,
        )  # fmt: skip
        if asked.state is ApprovalState.APPROVED:
            self._carry_out(asked, who, why, now)
        else:
            verb = "set" if kind == POLICY else kind
            kept.note(at=now, what=f"asks to {verb} {subject} (approval {asked.id})", why=why, who=who, person=True)
        return asked

    def _voice(self, wanted: str, who: str, why: str, now: float, *, yes: bool) -> Approval:
        kept = self._guard.kept
        if not yes and kept.approvals.find(wanted).kind == ACKNOWLEDGE:
            raise ApprovalError("an acknowledgement cannot be refused; override its rule instead")
        settled, told = voiced(kept.approvals, wanted, who=who, why=why, at=now, yes=yes)
        if told.kind == POLICY and told.state is ApprovalState.APPROVED:
            self._put_in_force(told, who, why)  # first: what cannot be put in force is not settled
        kept.approvals = settled
        if told.state is ApprovalState.APPROVED and told.kind in OWN_KINDS:
            self._carry_out(told, who, why, now)
        else:
            verb = "approved" if yes else "refused"
            what = f"{verb} {told.kind} {told.subject} (approval {wanted}, {told.state.value})"
            kept.note(at=now, what=what, why=why, who=who, person=True)
        return told

    def _put_in_force(self, approval: Approval, who: str, why: str) -> None:
        """Make the change of an approved policy. Raises :class:`~ekiden.guard.hands.NoAnswer`."""
        try:
            self._guard.hands.apply(agreed_change(approval, who, why, self._guard.engine_clock()))
        except InvalidControls as error:
            raise ApprovalError(f"{error}; refuse approval {approval.id}, and ask for what can work") from error

    def _carry_out(self, approval: Approval, who: str, why: str, now: float) -> None:
        """The last yes that it needed has been said."""
        kept, rule = self._guard.kept, approval.subject
        seconds = approval.details.get("seconds")
        until = now + seconds if isinstance(seconds, float | int) else None
        together = "".join(f", asked for by {voice.who}" for voice in approval.voices if voice.who != who)
        match approval.kind:
            case "acknowledge":
                kept.ladder = acknowledge(kept.ladder, rule, who)
                kept.note(at=now, what=f"acknowledged{together}", why=why, who=who, rule=rule, person=True)
            case "override":
                kept.ladder = override(kept.ladder, rule, who, until)
                what = f"overridden for {seconds:g} s{together}"
                kept.note(at=now, what=what, why=why, who=who, rule=rule, person=True)
            case "policy":
                what = f"approved to set {approval.subject} (approval {approval.id}){together}"
                kept.note(at=now, what=what, why=why, who=who, person=True)
            case "pause":
                kept.paused = Pause(who=who, why=why, at=now, until=until)
                what = f"paused{'' if seconds is None else f' for {seconds:g} s'}{together}"
                kept.note(at=now, what=what, why=why, who=who, person=True)
