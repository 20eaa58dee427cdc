"""What people do to a release: each act names the person by their key, in the server's ledger and in the journal."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from ekiden.evidence.extras import needed
from ekiden.evidence.reader import LedgerReadError
from ekiden.release.controller import Controller
from ekiden.release.exposure import Switchback
from ekiden.release.plan import ReleaseError, ReleasePlan
from ekiden.release.server import OutOfReach, Server
from ekiden.release.shadow import PlannedShadow, ShadowFollower
from ekiden.release.state import Event, Phase, State
from ekiden.release.store import ReleaseStore, create, may_be_approved, store_for

ACT_SECONDS = 10.0
"""How long an act is among the controls in force: long enough to be recorded, and to be told with its name by an engine
whose step takes seconds. What a block says there comes back."""


def person(server: Server, act: str, why: str) -> str:
    """The name of the key that acts, as the server knows it. The server records the act with it."""
    return server.set({"release": act}, why=why, seconds=ACT_SECONDS)["release"].who


def made(folder: Path, plan: ReleasePlan, server: Server) -> ReleaseStore:
    """The plan's release, which is begun if it was not. Raises :class:`ReleaseError` where it cannot be."""
    needed("scipy.stats", "evaluate")  # for the intervals: better missed now than at the horizon
    store = store_for(folder, plan)
    if store.state() is None:
        server.ledger().close()
        policy = server.policy()
        before = {name: policy[name].value for name in plan.candidate}
        who = person(server, f"{plan.name}: made", plan.why)
        create(store, plan, who=who, before=before)
    return store


def controller_of(store: ReleaseStore, server: Server, *, now: Callable[[], float] = time.time) -> Controller:
    """What carries the release on."""
    state = store.known()
    plan = state.plan

    def shadow() -> PlannedShadow:
        lag = min(30.0, plan.shadow.seconds / 4)
        window = plan.shadow.seconds + 60.0
        follower = ShadowFollower(server.ledger, plan.candidate, plan.objectives, lag=lag, window=window, now=now)
        return PlannedShadow(follower, seconds=plan.shadow.seconds, patience=4 * plan.shadow.seconds + 60.0, now=now)

    exposure = Switchback(server, plan, state.digest, state.before)
    return Controller(store, server, exposure, now=now, shadow=shadow)


def carry_on(
    store: ReleaseStore,
    server: Server,
    *,
    told: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.time,
) -> State:
    """Until it is a person's turn or the release is over. ``told`` is given every new message."""
    shown = ""
    with store.alone():
        controller = controller_of(store, server, now=now)
        while True:
            try:
                pause = controller.tick()
            except (LedgerReadError, sqlite3.Error) as error:
                raise ReleaseError(
                    f"the ledger cannot be read: {error}; start the release again to carry it on"
                ) from error
            state = store.known()
            message = f"{state.phase}: {controller.trouble or state.message}"
            if message != shown:
                told(message)
                shown = message
            if pause is None:
                return state
            sleep(pause)


def approve(store: ReleaseStore, server: Server, why: str, *, despite_inconclusive: bool = False) -> State:
    """A person agrees to the promotion. Raises :class:`ReleaseError` where that cannot be."""
    state = store.known()
    if state.phase is not Phase.PAUSED:
        may_be_approved(state, "", despite_inconclusive=despite_inconclusive)
    who = person(server, f"{state.plan.name}: approved", why)
    may_be_approved(state, who, despite_inconclusive=despite_inconclusive)
    return store.append(Event.APPROVED, who=who, why=why)


def promote(store: ReleaseStore, server: Server) -> State:
    """Carry out what was approved."""
    state = store.known()
    lacking = state.plan.approvals.needed - len(state.approvals)
    if state.phase is not Phase.PAUSED or lacking > 0:
        raise ReleaseError(
            f"the release {state.plan.name} is {state.phase}: {state.message}; it can be promoted at its horizon, once "
            f"{state.plan.approvals.needed} approved it (`ekiden release approve`)"
        )
    if waits := server.leave(state.subject, state.may_set, why=state.plan.why):
        raise ReleaseError(f"the release {state.plan.name} cannot be promoted yet: {waits}")
    who = person(
        server, f"{state.plan.name}: to be promoted", "approved by " + ", ".join(e.who for e in state.approvals)
    )
    return controller_of(store, server).promote(who)


def abort(store: ReleaseStore, server: Server, why: str) -> State:
    """Go back, whatever the release is in, a promotion included."""
    state = store.known()
    if state.phase is Phase.DEGRADED:
        raise ReleaseError(f"the release {state.plan.name} is rolled back already: {state.message}")
    try:
        who = person(server, f"{state.plan.name}: aborted", why)
    except OutOfReach:
        who = "unknown: the server did not answer"  # the wish counts all the same
    controller = controller_of(store, server)
    try:
        return controller.roll_back(why, who=who)
    except OutOfReach as error:
        ends = (
            "A server that starts does not put it in force again"
            if state.promoting
            else "A block in force ends by itself"
        )
        raise ReleaseError(
            f"{error}; the abort is noted, and no further block begins. {ends}; "
            f"`ekiden release start` with the same plan carries the abort out once the server answers"
        ) from error
