"""What the guard knows, and keeps over a restart of the server."""

from typing import Final

import msgspec

from ekiden.guard.approvals import Approvals, expired
from ekiden.guard.paging import WaitingPage
from ekiden.guardrails.actions import Values
from ekiden.guardrails.ladder import RuleState

NEWEST_DECISIONS: Final = 100
MOST_UNRECORDED: Final = 1000
GUARD: Final = "guard"
ACKNOWLEDGE: Final = "acknowledge"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the guard decided or a person did to it. ``at`` is Unix time; ``rule`` is empty where it concerns
    none. ``who`` is the person's key, or what decided it, such as ``guard``."""

    number: int
    at: float
    what: str
    why: str
    who: str
    rule: str = ""
    person: bool = False


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A person has switched all rules off, until a Unix time or until somebody switches them on."""

    who: str
    why: str
    at: float
    until: float | None = None


class Kept(msgspec.Struct, kw_only=True):
    """All of it, as it stands in the file.

    ``unrecorded`` are decisions that no ledger has yet, oldest first: the engine was being restarted.
    """

    ladder: dict[str, RuleState] = {}
    held: dict[str, tuple[Values, ...]] = {}
    given_up: dict[str, tuple[str, ...]] = {}
    paused: Pause | None = None
    approvals: Approvals = Approvals()
    pages: list[WaitingPage] = []
    decisions: list[Decision] = []
    unrecorded: list[Decision] = []
    numbered: int = 0

    def note(self, *, at: float, what: str, why: str, who: str, rule: str = "", person: bool = False) -> Decision:
        self.numbered += 1
        made = Decision(number=self.numbered, at=at, what=what, why=why, who=who, rule=rule, person=person)
        self.decisions = [*self.decisions, made][-NEWEST_DECISIONS:]
        self.unrecorded = [*self.unrecorded, made][-MOST_UNRECORDED:]
        return made

    def expire(self, now: float) -> None:
        """Drop what persons asked for and nobody settled in time."""
        self.approvals, gone = expired(self.approvals, now)
        for each in gone:
            what = f"approval {each.id} of {each.kind} {each.subject} expired"
            self.note(at=now, what=what, why=f"nobody settled what {each.asked_by} asked for", who=GUARD)
