"""What a release is in: the fold of its journal, and which events may come next.

The journal is all that is kept. Every write is one event, and the state after any number of them is a whole one, so
that a process that is killed between two of them can be followed by another. An event is written *before* what it
announces is done (``block begun``, ``promotion begun``, ``rollback begun``) or *after* what it tells of
(``block measured``, ``promoted``, ``rolled back``). What was announced is done again where nobody knows whether it was
done; doing it twice does no harm.

Phases and fields are called as in Argo Rollouts (``status.phase``, ``currentStepIndex``, ``pauseConditions``,
``abort``). An aborted release is ``Degraded``, with ``abort`` true, as there.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from ekiden.evaluation.plan.journal import Entry
from ekiden.release.analysis import AnalysisPhase, AnalysisRun, PairFigures
from ekiden.release.figures import BlockFigures
from ekiden.release.plan import ReleaseError, ReleasePlan, release_called


class Phase(StrEnum):
    PENDING = "Pending"
    PROGRESSING = "Progressing"
    PAUSED = "Paused"
    HEALTHY = "Healthy"
    DEGRADED = "Degraded"


class Event(StrEnum):
    CREATED = "created"
    SHADOWED = "shadowed"
    BLOCK_BEGUN = "block begun"
    BLOCK_MEASURED = "block measured"
    PAIR_VOID = "pair void"
    ANALYSED = "analysed"
    APPROVED = "approved"
    PROMOTION_BEGUN = "promotion begun"
    PROMOTED = "promoted"
    ROLLBACK_BEGUN = "rollback begun"
    ROLLED_BACK = "rolled back"


class ArmName(StrEnum):
    CANDIDATE = "candidate"
    BASELINE = "baseline"


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One block of a pair. ``attempt`` counts how often the pair was made again."""

    pair: int
    """From 0."""
    attempt: int
    place: int
    """0 or 1: the first or the second of the pair."""
    arm: ArmName
    run_id: str
    """The run of the engine in which it began."""
    begun: float
    """Unix time."""

    def text(self, name: str) -> str:
        """What the control ``release`` says while it lasts: it names the block, and is found again in the ledger."""
        return f"{name}: pair {self.pair + 1}.{self.attempt}, block {self.place + 1}, {self.arm}"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A server, over its restarts. ``address`` is None for one whose port is chosen at each start."""

    address: str | None
    model: str

    def is_same(self, other: "Place") -> bool:
        return self.address is not None and self == other


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    who: str
    why: str
    time: str


STEPS: Final = ("analysis: shadow", "setWeight: 50", "pause: {}", "setWeight: 100")
"""``setWeight`` is the candidate's share of the time."""
_SHADOW, _CANARY, _PAUSE, _FULL = range(len(STEPS))


class State(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    phase: Phase
    message: str
    plan: ReleasePlan
    digest: str
    """Of the plan."""
    started_by: str
    before: dict[str, Any]
    """What the candidate's settings were when the release was made."""
    current_step_index: int = _SHADOW
    set_weight: int = 0
    """Percent of the time that the candidate now has."""
    abort: bool = False
    pause_conditions: list[dict[str, str]] = []
    """``reason`` and ``startTime``."""
    analysis_run: AnalysisRun = AnalysisRun(phase=AnalysisPhase.RUNNING, message="")
    shadow: dict[str, Any] = {}
    block: Block | None = None
    """The newest one that was begun."""
    measured: dict[str, BlockFigures] = {}
    """Blocks of the present attempt of each pair, by ``pair/place``."""
    arms: dict[str, ArmName] = {}
    """Likewise."""
    attempts: dict[int, int] = {}
    """How often a pair was void."""
    approvals: list[Approval] = []
    promoting: str = ""
    """Who has the candidate's settings made the standing ones, or has had; empty for nobody."""
    promoted_on: Place | None = None
    """The server where that was done."""
    promoted_at: str = ""
    """UTC, when it was done."""
    events: int = 0

    @property
    def subject(self) -> str:
        """What the release is called where it acts, and where a person must let it."""
        return release_called(self.plan, self.digest)

    @property
    def may_set(self) -> dict[str, list[Any]]:
        """The values that it gives each control: the candidate's, and that from before, to go back to."""
        return {name: [value, self.before[name]] for name, value in self.plan.candidate.items()}

    @property
    def is_over(self) -> bool:
        return self.phase in (Phase.HEALTHY, Phase.DEGRADED)

    @property
    def pairs(self) -> dict[int, PairFigures]:
        """The whole pairs, by number."""
        found = {}
        for pair in range(self.plan.canary.pairs):
            arms = {self.arms[key]: self.measured[key] for key in (f"{pair}/0", f"{pair}/1") if key in self.measured}
            if len(arms) == 2:
                found[pair] = PairFigures(candidate=arms[ArmName.CANDIDATE], baseline=arms[ArmName.BASELINE])
        return found

    @property
    def unmeasured(self) -> Block | None:
        """The newest block, as long as its figures are wanted."""
        block = self.block
        if block is None or block.attempt != self.attempts.get(block.pair, 0):
            return None
        return block if f"{block.pair}/{block.place}" not in self.measured else None

    @property
    def next_place(self) -> tuple[int, int] | None:
        """Pair and place of the block that is to be begun next, once the newest is over; None after the horizon."""
        for pair in range(self.plan.canary.pairs):
            for place in (0, 1):
                if f"{pair}/{place}" not in self.measured:
                    return pair, place
        return None

    def attempt_of(self, pair: int) -> int:
        return self.attempts.get(pair, 0)


_WHILE: Final[Mapping[Event, frozenset[Phase]]] = {
    Event.SHADOWED: frozenset({Phase.PENDING}),
    Event.BLOCK_BEGUN: frozenset({Phase.PENDING, Phase.PROGRESSING}),
    Event.BLOCK_MEASURED: frozenset({Phase.PROGRESSING}),
    Event.PAIR_VOID: frozenset({Phase.PROGRESSING}),
    Event.ANALYSED: frozenset({Phase.PROGRESSING}),
    Event.APPROVED: frozenset({Phase.PAUSED}),
    Event.PROMOTION_BEGUN: frozenset({Phase.PAUSED, Phase.PROGRESSING}),
    Event.PROMOTED: frozenset({Phase.PROGRESSING}),
    Event.ROLLBACK_BEGUN: frozenset({Phase.PENDING, Phase.PROGRESSING, Phase.PAUSED, Phase.HEALTHY}),
    Event.ROLLED_BACK: frozenset({Phase.PROGRESSING}),
}
"""In which phases an event may come. ``CREATED`` comes first and only then."""


def state_of(entries: Iterable[Entry]) -> State | None:
    """The state that the journal's entries lead to; None for none. Raises :class:`ReleaseError` for impossible ones."""
    state: State | None = None
    for entry in entries:
        state = after(state, entry)
    return state


def check(state: State | None, event: Event) -> None:
    """Raises :class:`ReleaseError` if an event cannot come now."""
    if (state is None) is not (event is Event.CREATED):
        raise ReleaseError(f"{event!r} cannot come " + ("first" if state is None else "again: a release is there"))
    if state is not None and state.phase not in _WHILE[event]:
        raise ReleaseError(
            f"the release {state.plan.name} is {state.phase} ({state.message}), so {event!r} cannot come"
        )
    if state is not None and state.abort and event is not Event.ROLLED_BACK:
        raise ReleaseError(f"the release {state.plan.name} is being rolled back, so {event!r} cannot come")


def after(state: State | None, entry: Entry) -> State:
    """The state after one more event."""
    event, told = Event(entry.event), entry.payload
    check(state, event)
    if state is None:
        plan = msgspec.convert(told["plan"], ReleasePlan)
        created = {name: told[name] for name in ("digest", "before")}
        return State(phase=Phase.PENDING, message="made", plan=plan, started_by=told["who"], events=1, **created)
    change = _CHANGES[event](state, told, entry.time)
    return msgspec.structs.replace(state, events=state.events + 1, **change)


def _shadowed(state: State, told: dict[str, Any], time: str) -> dict[str, Any]:
    return {"shadow": told, "current_step_index": _CANARY, "message": told["message"]}


def _begun(state: State, told: dict[str, Any], time: str) -> dict[str, Any]:
    block = msgspec.convert(told, Block)
    key = f"{block.pair}/{block.place}"
    return {
        "phase": Phase.PROGRESSING,
        "current_step_index": _CANARY,
        "set_weight": 50,
        "block": block,
        "arms": {**state.arms, key: block.arm},
        "message": block.text(state.plan.name),
    }


def _measured(state: State, told: dict[str, Any], time: str) -> dict[str, Any]:
    figures = msgspec.convert(told["figures"], BlockFigures)
    return {
        "measured": {**state.measured, f"{told['pair']}/{told['place']}": figures},
        "message": told["message"],
    }


def _void(state: State, told: dict[str, Any], time: str) -> dict[str, Any]:
    pair = told["pair"]
    kept = {key: value for key, value in state.measured.items() if not key.startswith(f"{pair}/")}
    return {
        "measured": kept,
        "attempts": {**state.attempts, pair: state.attempt_of(pair) + 1},
        "message": told["message"],
    }


def _analysed(state: State, told: dict[str, Any], time: str) -> dict[str, Any]:
    run = msgspec.convert(told, AnalysisRun)
    inconclusive = run.phase is AnalysisPhase.INCONCLUSIVE
    reason = "InconclusiveAnalysisRun" if inconclusive else "CanaryPauseStep"
    if run.phase not in (AnalysisPhase.SUCCESSFUL, AnalysisPhase.INCONCLUSIVE):
        return {"analysis_run": run, "message": run.message}
    return {
        "analysis_run": run,
        "phase": Phase.PAUSED,
        "current_step_index": _PAUSE,
        "set_weight": 0,
        "pause_conditions": [{"reason": reason, "startTime": time}],
        "message": f"waits for a person's approval; {run.message}",
    }


def _approved(state: State, told: dict[str, Any], time: str) -> dict[str, Any]:
    approval = Approval(who=told["who"], why=told["why"], time=time)
    approvals = [each for each in state.approvals if each.who != approval.who] + [approval]
    lacking = state.plan.approvals.needed - len(approvals)
    message = f"approved; {lacking} more needed" if lacking > 0 else "approved; `ekiden release promote` carries it out"
    return {"approvals": approvals, "message": message}


def _promoting(state: State, told: dict[str, Any], time: str) -> dict[str, Any]:
    if len(state.approvals) < state.plan.approvals.needed:
        raise ReleaseError(f"the release {state.plan.name} lacks approvals, and was to be promoted")
    return {
        "phase": Phase.PROGRESSING,
        "promoting": told["who"],
        "promoted_on": msgspec.convert(told.get("server"), Place | None),
        "current_step_index": _FULL,
        "set_weight": 100,
        "pause_conditions": [],
        "message": f"being promoted by {told['who']}",
    }


def _promoted(state: State, told: dict[str, Any], time: str) -> dict[str, Any]:
    if not state.promoting:
        raise ReleaseError(f"the release {state.plan.name} was not being promoted")
    return {"phase": Phase.HEALTHY, "promoted_at": time, "message": f"promoted by {told['who']}"}


def _going_back(state: State, told: dict[str, Any], time: str) -> dict[str, Any]:
    return {
        "phase": Phase.PROGRESSING,
        "abort": True,
        "pause_conditions": [],
        "message": f"RolloutAborted: {told['why']}",
    }


def _back(state: State, told: dict[str, Any], time: str) -> dict[str, Any]:
    if not state.abort:
        raise ReleaseError(f"the release {state.plan.name} was not being rolled back")
    return {"phase": Phase.DEGRADED, "set_weight": 0}


_CHANGES: Final = {
    Event.SHADOWED: _shadowed,
    Event.BLOCK_BEGUN: _begun,
    Event.BLOCK_MEASURED: _measured,
    Event.PAIR_VOID: _void,
    Event.ANALYSED: _analysed,
    Event.APPROVED: _approved,
    Event.PROMOTION_BEGUN: _promoting,
    Event.PROMOTED: _promoted,
    Event.ROLLBACK_BEGUN: _going_back,
    Event.ROLLED_BACK: _back,
}
