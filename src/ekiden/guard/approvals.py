"""What waits for a person's yes: a guard's step that must be acknowledged, an override, a change of policy, a release.

- An approval is opened by software or by a person, and settled by persons with keys of scope ``admin``. It is approved
  when as many of them as it needs, with keys of different names, have said yes; one no refuses it. Whoever asked for
  something counts as one yes where that was a person.
- Nothing is forgotten: settled approvals stay to be read, the newest :data:`MAX_SETTLED` of them.
- What a person asks the guard for expires where nobody settles it in :data:`ASKED_SECONDS`: it was asked for as things
  were then.
- What an approval brings about is not done here; whoever opened it looks whether it is approved.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

MAX_OPEN: Final = 100
MAX_SETTLED: Final = 200
ASKED_SECONDS: Final = 3600.0
RELEASE: Final = "release"


class ApprovalError(ValueError):
    """Something that cannot be done to an approval; the message says why and what can be. ``known``: there is one."""

    def __init__(self, message: str, *, known: bool = True) -> None:
        super().__init__(message)
        self.known = known


class ApprovalState(StrEnum):
    OPEN = "open"
    APPROVED = "approved"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    """What it was asked for is over."""
    EXPIRED = "expired"
    """Nobody settled it in time."""


class Voice(msgspec.Struct, frozen=True, kw_only=True):
    """One person's yes or no, at a Unix time."""

    who: str
    why: str
    at: float
    yes: bool = True


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """``kind`` and ``subject`` say what for: ("acknowledge", a rule), ("override", a rule), ("policy", what it sets),
    ("release", its name).

    ``values``: of a policy, what it sets, by the names of controls; of a release, the values that it may give each of
    them while it goes on. ``until``: the Unix time at which it expires unless it is settled.
    """

    id: str
    kind: str
    subject: str
    asked_by: str
    why: str
    at: float
    needed: int = 1
    details: dict[str, str | float | None] = {}
    values: dict[str, Any] = {}
    until: float | None = None
    state: ApprovalState = ApprovalState.OPEN
    voices: tuple[Voice, ...] = ()

    @property
    def open(self) -> bool:
        return self.state is ApprovalState.OPEN

    @property
    def lets_release(self) -> bool:
        """Whether a release may now set what ``values`` says."""
        return self.kind == RELEASE and self.state is ApprovalState.APPROVED and bool(self.values)

    @property
    def lacking(self) -> int:
        """How many more persons must say yes."""
        return max(0, self.needed - len({voice.who for voice in self.voices if voice.yes})) if self.open else 0


class Approvals(msgspec.Struct, frozen=True):
    """All approvals, oldest first, as one value. ``numbered``: how many there have ever been."""

    all: tuple[Approval, ...] = ()
    numbered: int = 0

    def find(self, wanted: str) -> Approval:
        """Raises :class:`ApprovalError`."""
        for each in self.all:
            if each.id == wanted:
                return each
        waiting = ", ".join(each.id for each in self.all if each.open) or "none"
        raise ApprovalError(f"there is no approval {wanted!r}; open are: {waiting}", known=False)

    def open_for(self, kind: str, subject: str) -> Approval | None:
        return next((each for each in self.all if each.open and (each.kind, each.subject) == (kind, subject)), None)

    def newest_for(self, kind: str, subject: str) -> Approval | None:
        return next((each for each in reversed(self.all) if (each.kind, each.subject) == (kind, subject)), None)


def opened(
    approvals: Approvals,
    *,
    kind: str,
    subject: str,
    asked_by: str,
    why: str,
    at: float,
    needed: int,
    person: bool,
    details: dict[str, str | float | None] | None = None,
    values: dict[str, Any] | None = None,
    until: float | None = None,
) -> tuple[Approvals, Approval]:
    """With one more. One that is open for the same subject is returned as it is. ``person``: the asker is one, and so
    has said yes. Raises :class:`ApprovalError` when too many are open."""
    if (there := approvals.open_for(kind, subject)) is not None:
        return approvals, there
    if sum(each.open for each in approvals.all) >= MAX_OPEN:
        raise ApprovalError(f"{MAX_OPEN} approvals are open already; settle some of them first")
    number = approvals.numbered + 1
    voices = (Voice(who=asked_by, why=why, at=at),) if person else ()
    new = Approval(
        id=f"a{number}", kind=kind, subject=subject, asked_by=asked_by, why=why, at=at, needed=needed,
        details=details or {}, values=values or {}, until=until, voices=voices,
    )  # fmt: skip
    if not new.lacking:
        new = msgspec.structs.replace(new, state=ApprovalState.APPROVED)
    return Approvals(_kept((*approvals.all, new)), number), new


def voiced(
    approvals: Approvals, wanted: str, *, who: str, why: str, at: float, yes: bool
) -> tuple[Approvals, Approval]:
    """With one person's yes or no. Raises :class:`ApprovalError` for a settled one, and for a second yes of the same
    person."""
    approval = approvals.find(wanted)
    if not approval.open:
        raise ApprovalError(f"approval {wanted} is {approval.state.value} already")
    if yes and any(voice.who == who for voice in approval.voices):
        raise ApprovalError(f"{who} has approved {wanted} already; it needs a person with a key of another name")
    changed = msgspec.structs.replace(approval, voices=(*approval.voices, Voice(who=who, why=why, at=at, yes=yes)))
    if not yes:
        changed = msgspec.structs.replace(changed, state=ApprovalState.REFUSED)
    elif not changed.lacking:
        changed = msgspec.structs.replace(changed, state=ApprovalState.APPROVED)
    return _with(approvals, changed), changed


def withdrawn(approvals: Approvals, kind: str, subject: str) -> Approvals:
    """Without what is open for this subject or lets its release go on, if there is such: it is no longer asked for."""
    for each in approvals.all:
        if (each.open or each.lets_release) and (each.kind, each.subject) == (kind, subject):
            approvals = _with(approvals, msgspec.structs.replace(each, state=ApprovalState.WITHDRAWN))
    return approvals


def expired(approvals: Approvals, now: float) -> tuple[Approvals, list[Approval]]:
    """Without those that nobody settled until a Unix time; returns these too."""
    late = [each for each in approvals.all if each.open and each.until is not None and each.until <= now]
    gone = [msgspec.structs.replace(each, state=ApprovalState.EXPIRED) for each in late]
    for each in gone:
        approvals = _with(approvals, each)
    return approvals, gone


def _with(approvals: Approvals, changed: Approval) -> Approvals:
    return msgspec.structs.replace(
        approvals, all=_kept([changed if each.id == changed.id else each for each in approvals.all])
    )


def _kept(every: Sequence[Approval]) -> tuple[Approval, ...]:
    settled = [each.id for each in every if not each.open and not each.lets_release]
    gone = set(settled[: max(0, len(settled) - MAX_SETTLED)])
    return tuple(each for each in every if each.id not in gone)
