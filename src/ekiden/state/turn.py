"""What one turn of the engine did, as its stages returned it: the ledger's only source.

A :class:`Turn` is filled in while the turn runs and handed to the recorder at its end, between turns. It refers to
live sequences, which change later, so a recorder copies the values that it keeps.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from ekiden.state.controls import ControlChange, SetField
from ekiden.state.drafting import NoDrafts
from ekiden.state.plan import BatchPlan, BlockCopy, StepOutput
from ekiden.state.policy import StepLoad, TimeRange
from ekiden.state.request import Refusal, Request, RequestUpdate
from ekiden.state.sequence import PauseReason, Sequence


class WaitReason(StrEnum):
    """Why a request that was looked at for admission did not join."""

    SLOTS = "slots"
    KV_BLOCKS = "kv_blocks"
    PREEMPTED_FIRST = "preempted_first"
    BATCHING = "batching"


class LeftOutReason(StrEnum):
    """Why a running sequence got no tokens in a step."""

    TOKEN_BUDGET = "token_budget"
    CONCURRENT_PREFILLS = "concurrent_prefills"
    INTER_TOKEN_TARGET = "inter_token_target"
    KV_BLOCKS = "kv_blocks"
    PREFIX_IN_FLIGHT = "prefix_in_flight"


class Guessed(NamedTuple):
    """What was guessed for a row: how many tokens, on what they rest (:attr:`~ekiden.state.drafting.Guess.match`), and
    how many of those that were worth a place the row's grammar allows."""

    guessed: int
    match: int
    allowed: int


@dataclass(slots=True)
class FormationOutcome:
    """What formation decided: the plan, the sequence of each of its rows, and who got no row and why.

    ``failed`` could get no row, because the work for them failed. ``preempted`` are the victims; for each,
    ``kept_blocks`` has how many blocks it keeps in the swap space, from where it may come back in the same turn, and
    ``runners_up`` who would have been chosen next. ``guesses`` has what was guessed for a row by its index, where
    anything was; the plan's row says how many drafts it took. ``no_drafts`` tells of the decode rows that get none from
    this step on and why, and with None of those that have some again; ``num_no_drafts`` counts all that get none.
    ``micros_per_draft``: see :class:`~ekiden.state.drafting.Drafter`.
    """

    token_budget: int
    plan: BatchPlan = field(default_factory=BatchPlan)
    load: StepLoad = field(default_factory=StepLoad)
    sequences: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    kept_blocks: list[int] = field(default_factory=list)
    runners_up: list[Sequence | None] = field(default_factory=list)
    left_out: list[tuple[Sequence, LeftOutReason]] = field(default_factory=list)
    failed: list[Sequence] = field(default_factory=list)
    guesses: dict[int, Guessed] = field(default_factory=dict)
    no_drafts: list[tuple[Sequence, NoDrafts | None]] = field(default_factory=list)
    num_no_drafts: dict[NoDrafts, int] = field(default_factory=dict)
    micros_per_draft: int = 0


class Place(NamedTuple):
    """What an admitted sequence was given. ``standing``: the number by which the queue had ordered it
    (:meth:`WaitingQueue.standing`)."""

    slot: int
    blocks: int
    standing: float


@dataclass(slots=True)
class RefillOutcome:
    """What refill decided at one boundary.

    ``wait_reason`` holds back ``head``, the first in line, and with it all that wait; ``passed_over`` are those that
    were looked at and did not fit. ``places`` has one for each that was admitted.
    """

    admitted: list[Sequence] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    resumed: list[Sequence] = field(default_factory=list)
    swap_in: list[BlockCopy] = field(default_factory=list)
    wait_reason: WaitReason | None = None
    head: Sequence | None = None
    passed_over: list[Sequence] = field(default_factory=list)

    def then(self, later: "RefillOutcome") -> "RefillOutcome":
        """The later outcome, with the sequences that come back to a step by either."""
        return replace(later, resumed=self.resumed + later.resumed, swap_in=self.swap_in + later.swap_in)


@dataclass(slots=True)
class Arrival:
    """A request at intake, with the queue as it found it."""

    request: Request
    outcome: Sequence | Refusal
    num_waiting: int
    waiting_tokens: int


class Pause(msgspec.Struct, frozen=True, tag=True):
    """Hold a request back for a reason, or (``paused`` False) withdraw that reason. ``by``: the person who asked."""

    request_id: str
    reason: PauseReason
    paused: bool
    by: str | None = None


@dataclass(slots=True)
class Turn:
    """One call of ``EngineCore.step``. Times are seconds on the engine's clock.

    What happened while the inbox was applied belongs to ``start``: ``arrivals`` to ``ended_at_start``, and
    ``refilled_at_start`` when there were newcomers, or nothing ran, before the step was formed. The rest belongs to
    ``end``; ``refilled`` is None in a turn that computed nothing.
    """

    start: float
    end: float = 0.0
    arrivals: list[Arrival] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    pauses_applied: list[tuple[str, frozenset[PauseReason], Pause]] = field(default_factory=list)
    """Each with the request's pauses after it; one that must wait a turn is applied later than it came."""
    control_changes: list[tuple[int, ControlChange]] = field(default_factory=list)
    """Those that were asked for and accepted, each with the number of arrivals of this turn before it."""
    set_fields: list[SetField] = field(default_factory=list)
    """The fields that these changes set, and those that the expiry of earlier changes set back."""
    epoch: int = 0
    """The epoch of the controls that were in force."""
    ended_at_start: list[RequestUpdate] = field(default_factory=list)
    refilled_at_start: RefillOutcome | None = None
    formed: FormationOutcome | None = None
    """None when there was nothing to compute, as are those that follow."""
    predicted: TimeRange | None = None
    prefill_share: float = 0.0
    """The part of the predicted time that is due to prefill chunks, 0 to 1."""
    output: StepOutput | None = None
    failure: str | None = None
    updates: list[RequestUpdate] = field(default_factory=list)
    """What the step did for its requests, ends included."""
    refilled: RefillOutcome | None = None
    num_waiting: int = 0
    num_running: int = 0
    num_free_blocks: int = 0


class TurnRecorder(Protocol):
    def record(self, turn: Turn) -> None:
        """Called at the end of every turn. It must neither wait nor change what it is shown. A turn for which it raises
        is not recorded; it is shown the next one all the same."""
        ...
