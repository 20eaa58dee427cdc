"""Carries a release on, a look at a time: what is due now, done and written down.

It holds nothing that the journal does not, so a process that is killed at any moment can be followed by another. What
was announced and perhaps not done is done again. While nobody carries a release on, nothing of it stays in force: the
candidate's block ends by itself.

It goes back by itself on harm (the e-process, a block's failure condition, a guard that had to act under the
candidate), on a metric that fails at the horizon, and on missing data. It never promotes by itself.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from ekiden.evaluation.plan.conditions import Condition
from ekiden.evidence.reader import LedgerReader
from ekiden.ledger.records import ControlRow
from ekiden.release.analysis import AnalysisPhase, at_the_horizon, gross_harm, lacking_data, looked_at
from ekiden.release.exposure import Exposure
from ekiden.release.figures import BlockFigures, block_figures
from ekiden.release.plan import ReleaseError
from ekiden.release.server import OutOfReach, Server
from ekiden.release.state import ArmName, Block, Event, Phase, State
from ekiden.release.store import ReleaseStore

POLL_SECONDS: Final = 1.0
_SOON: Final = 0.3
_RECORDED_WITHIN: Final = 10.0
"""Seconds after which a block that was begun must be in the ledger."""
_WORDS: Final = frozenset({"release", "guard"})
"""Controls that nothing obeys."""
BY_ITSELF: Final = "release"
"""Who goes back, where no person asked for it."""


class ShadowRun(Protocol):
    """The candidate in the simulator beside production."""

    def look(self) -> float | None:
        """Go on a little; the predicted difference of the SLO-missed share once enough was seen, else None. NaN where
        nothing could be predicted."""

    def told(self) -> dict[str, object]:
        """What it found, with its error, for the journal."""


class Controller:
    """``now`` gives Unix time. ``shadow`` is asked for where the plan wants one."""

    def __init__(
        self,
        store: ReleaseStore,
        server: Server,
        exposure: Exposure,
        *,
        now: Callable[[], float],
        shadow: Callable[[], ShadowRun] | None = None,
    ) -> None:
        self._store, self._server, self._exposure, self._now = store, server, exposure, now
        self._make_shadow = shadow
        self._shadow: ShadowRun | None = None
        self._asked: tuple[str, float] = ("", 0.0)
        """The newest block that this process put in force, and when."""
        self._silent_since: float | None = None
        self.trouble = ""
        """Why it waits, where it does."""

    def tick(self) -> float | None:
        """Do what is due; seconds until the next look, or None once it is a person's turn or the release is over."""
        state = self._store.known()
        if state.is_over or state.phase is Phase.PAUSED:
            return None
        self.trouble = ""
        try:
            pause = self._due(state)
            self._silent_since = None
            return pause
        except OutOfReach as error:
            return self._without_answer(state, str(error))

    def roll_back(self, why: str, *, who: str) -> State:
        """Go back, whatever the release is in; raises :class:`OutOfReach` if that could not be carried out yet."""
        return self._carry_back(self._store.append(Event.ROLLBACK_BEGUN, why=why, who=who))

    def promote(self, who: str) -> State:
        """Carry out what was approved."""
        self._store.append(Event.PROMOTION_BEGUN, who=who, server=self._server.place())
        return self._carry_through(who)

    # --- what is due

    def _due(self, state: State) -> float | None:
        if state.abort:
            self._carry_back(state)
            return None
        if state.promoting:
            self._carry_through(state.promoting)
            return None
        if state.plan.shadow.seconds > 0 and not state.shadow and self._make_shadow is not None:
            return self._look_at_shadow(state)
        if (block := state.unmeasured) is not None:
            return self._look_at(state, block)
        return self._next(state)

    def _look_at_shadow(self, state: State) -> float | None:
        assert self._make_shadow is not None
        self._shadow = self._shadow or self._make_shadow()
        difference = self._shadow.look()
        if difference is None:
            return POLL_SECONDS
        if math.isnan(difference):
            return self._back("the shadow has no data: nothing could be predicted, and missing data fails")
        message = f"predicted slo_missed_share: candidate - production is {difference:+.4f}"
        self._store.append(Event.SHADOWED, message=message, difference=difference, **self._shadow.told())
        failure = state.plan.shadow.failure_condition
        if failure is not None and Condition.parse(failure).holds(difference):
            return self._back(f"{message}, which meets {failure}")
        return _SOON

    def _next(self, state: State) -> float | None:
        """After a block: stop, begin the next, or judge."""
        pairs = state.pairs
        early = looked_at(state.plan, list(pairs.values()))
        if early.phase is not AnalysisPhase.RUNNING:
            return self._back(early.message)
        place = state.next_place
        if place is None:
            run = at_the_horizon(state.plan, pairs)
            self._store.append(Event.ANALYSED, **msgspec.to_builtins(run))
            if run.phase in (AnalysisPhase.SUCCESSFUL, AnalysisPhase.INCONCLUSIVE):
                return None
            return self._back(run.message)
        return self._begin(state, *place)

    def _begin(self, state: State, pair: int, place: int) -> float | None:
        try:
            if waits := self._server.leave(state.subject, state.may_set, why=state.plan.why):
                self.trouble = waits
                return POLL_SECONDS
        except ReleaseError as error:
            return self._back(str(error))
        policy = self._server.policy()
        if (guard := policy.get("guard")) is not None and guard.value:
            raise OutOfReach(f"the guard is at work ({guard.value}), and no block begins meanwhile")
        passing = [name for name, told in policy.items() if told.expires_in_seconds is not None and name not in _WORDS]
        if passing:  # somebody's change, or what undoes ours, holds for a while: its end would disturb a block
            self.trouble = f"what was set for a while ends first: {', '.join(passing)}"
            return POLL_SECONDS
        now = {name: policy[name].value for name in state.plan.candidate}
        if now != state.before:
            return self._back(f"what the candidate is compared with has changed: it was {state.before}, and is {now}")
        attempt = state.attempt_of(pair)
        with self._server.ledger() as reader:
            run_id = reader.header.run_id
        arm = self._exposure.order(pair, attempt)[place]
        block = Block(pair=pair, attempt=attempt, place=place, arm=arm, run_id=run_id, begun=self._now())
        self._store.append(Event.BLOCK_BEGUN, **msgspec.to_builtins(block))
        return self._put_in_force(state, block)

    def _put_in_force(self, state: State, block: Block) -> float | None:
        self._exposure.begin(block)
        self._asked = (block.text(state.plan.name), self._now())
        if self._store.known().abort or self._store.known().is_over:  # somebody aborted it meanwhile
            self._exposure.withdraw("aborted while a block began")
            return None
        return min(POLL_SECONDS, state.plan.canary.block_seconds)

    def _look_at(self, state: State, block: Block) -> float | None:
        """Is the newest block over, and what did it give?"""
        text = block.text(state.plan.name)
        with self._server.ledger() as reader:
            if reader.header.run_id != block.run_id:
                return self._void(state, block, "the engine was restarted")
            row = _row_of(reader, text)
            if row is None:
                return self._not_recorded(state, block, text)
            assert row.expires is not None
            first = (
                block
                if block.place == 0
                else msgspec.structs.replace(block, place=0, arm=state.arms[f"{block.pair}/0"])
            )
            if (cause := _disturbance(reader, row, _row_of(reader, first.text(state.plan.name)))) is not None:
                return self._disturbed(state, block, cause)
            canary, objectives = state.plan.canary, state.plan.objectives
            figures = block_figures(
                reader,
                start=row.at,
                end=row.expires,
                burn_in=canary.burn_in_seconds,
                drain=canary.drain_seconds,
                settle=canary.settle_seconds,
                ttft=objectives.ttft,
                tpot=objectives.tpot,
            )
        if figures is not None:
            return self._measured(state, block, figures)
        latest = block.begun + _RECORDED_WITHIN + canary.block_seconds + canary.settle_seconds + canary.silence_seconds
        if self._now() > latest:
            return self._back(f"{text}: the ledger has not moved since; missing data fails")
        return POLL_SECONDS

    def _not_recorded(self, state: State, block: Block, text: str) -> float | None:
        """It was announced. If this process did not put it in force, perhaps nobody did."""
        asked, since = self._asked
        if asked != text:
            return self._put_in_force(state, block)
        if self._now() - since > _RECORDED_WITHIN:
            raise OutOfReach(f"{text} was begun, and is not in the ledger")
        return _SOON

    def _measured(self, state: State, block: Block, figures: BlockFigures) -> float | None:
        share = figures.missed_share
        told = "no requests" if share is None else f"{figures.missed} of {figures.offered} missed their objectives"
        state = self._store.append(
            Event.BLOCK_MEASURED,
            pair=block.pair,
            place=block.place,
            figures=msgspec.to_builtins(figures),
            message=f"{block.text(state.plan.name)}: {told}",
        )
        if (lacking := lacking_data(state.plan, figures)) is not None:
            return self._back(lacking)
        ours = [block for key, block in state.measured.items() if state.arms[key] is ArmName.CANDIDATE]
        if (gross := gross_harm(state.plan, ours)) is not None:
            return self._back(gross)
        return 0.0

    def _disturbed(self, state: State, block: Block, row: ControlRow) -> float | None:
        cause = f"{row.who or row.set_by} set {row.name} to {row.value[:80]!r} ({row.why[:80]})"
        if row.who.startswith("guard:") and block.arm is ArmName.CANDIDATE:
            return self._back(f"the guard had to act under the candidate: {cause}")
        return self._void(state, block, cause)

    def _void(self, state: State, block: Block, why: str) -> float | None:
        voided = 1 + sum(state.attempts.values())
        if voided > state.plan.canary.void_pairs:
            return self._back(f"{why}; {voided} pairs were void, and void_pairs is {state.plan.canary.void_pairs}")
        self._exposure.withdraw(f"pair {block.pair + 1} is void: {why}")
        message = f"pair {block.pair + 1} is made again: {why}"
        self._store.append(Event.PAIR_VOID, pair=block.pair, message=message)
        return 0.0

    # --- going back and through

    def _back(self, why: str) -> float | None:
        self.roll_back(why, who=BY_ITSELF)
        return None

    def _carry_back(self, state: State) -> State:
        why = state.message
        if state.promoting:
            self._exposure.restore(why)
        else:
            self._exposure.withdraw(why)
        state = self._store.append(Event.ROLLED_BACK)
        with contextlib.suppress(OutOfReach, ReleaseError):  # it is rolled back all the same
            self._server.end_leave(state.subject, why=why)
        return state

    def _carry_through(self, who: str) -> State:
        state = self._store.known()
        approved = ", ".join(f"{each.who} ({each.why})" for each in state.approvals)
        self._exposure.promote(f"promoted by {who}, approved by {approved}")
        return self._store.append(Event.PROMOTED, who=who)

    def _without_answer(self, state: State, why: str) -> float | None:
        """Wait for a while; then that is missing data."""
        now, self.trouble = self._now(), why
        if self._silent_since is None:
            self._silent_since = now
        state = self._store.known()  # something may have been written before the answer failed to come
        if state.abort and not state.promoting:
            if state.block is None or now > state.block.begun + state.plan.canary.block_seconds + _RECORDED_WITHIN:
                self._store.append(Event.ROLLED_BACK, by="expiry")  # the block has ended by itself
                return None
        elif not state.promoting and now - self._silent_since >= state.plan.canary.silence_seconds:
            self._store.append(Event.ROLLBACK_BEGUN, why=f"{why}; missing data fails", who=BY_ITSELF)
        return POLL_SECONDS


def _row_of(reader: LedgerReader, text: str) -> ControlRow | None:
    """The newest row with which a block was put in force."""
    rows = [row for row in reader.controls_named("release") if row.value == text and row.who != "expired"]
    return rows[-1] if rows else None


def _disturbance(reader: LedgerReader, own: ControlRow, first: ControlRow | None) -> ControlRow | None:
    """What somebody else did to the controls during a block, or between it and the ``first`` one of its pair; None for
    nothing. What a guard did goes before."""
    assert own.expires is not None
    since = own if first is None else first
    others = [
        row
        for row in reader.controls_between(since.at, own.expires)
        if row.turn > own.turn or (since.turn < row.turn < own.turn and row.who != "expired")
        if row.name != "release" and not row.name.startswith("pause ")
        if not (row.name == "guard" and not row.value)
    ]
    return next((row for row in others if row.who.startswith("guard:")), others[0] if others else None)
