"""Where releases are kept: a folder each, with the journal that is all there is to know of it.

``<folder>/<name>-<first 12 of the plan's digest>[-<try>]/journal.jsonl``. Every writer checks an event against the
state under the journal's lock, so that two commands at once cannot both promote and abort.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ekiden.evaluation.plan.journal import Entry, Journal
from ekiden.release.analysis import e_process
from ekiden.release.plan import ReleaseError, ReleasePlan, release_digest
from ekiden.release.state import STEPS, Event, Phase, State, after, state_of
from ekiden.state.controls import typed_values


class ReleaseStore:
    """One release's folder. ``now`` gives the time of entries."""

    def __init__(self, folder: Path, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.folder = folder
        self._journal = Journal(folder, now=now, events=Event, way_out="abort by hand, with `ekiden policy`")

    def state(self) -> State | None:
        """None where no release was made yet. Raises :class:`ReleaseError` for a journal that was changed."""
        entries, faults = self._journal.read()
        if faults:
            raise ReleaseError(f"{self._journal.path}: {faults[0]}; look at what is in force with `ekiden policy show`")
        return state_of(entries)

    def known(self) -> State:
        """The state of a release that was made."""
        state = self.state()
        if state is None:
            raise ReleaseError(f"{self.folder} holds no release; `ekiden release start PLAN` makes one")
        return state

    def last_digest(self) -> str:
        """The digest of the newest entry, which stands for all of them."""
        return self._journal.last_digest()

    def append(self, event: Event, **payload: Any) -> State:
        """Add what happened; returns the state after it. Raises :class:`ReleaseError` if it cannot come now."""

        reached: list[State] = []

        def allowed(before: Sequence[Entry]) -> None:
            entry = Entry(number=len(before), time="", event=event, payload=msgspec.to_builtins(payload), before="")
            after(state_of(before), entry)
            reached[:] = [state for state in (state_of(before),) if state is not None]

        entry = self._journal.append(event, payload, allowed=allowed)
        return after(reached[0] if reached else None, entry)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Only one process at a time carries a release on; raises :class:`ReleaseError` in another."""
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / "running.lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ReleaseError(
                    f"another process carries on the release in {self.folder}; let it, or end it"
                ) from None
            yield
        finally:
            os.close(handle)


def create(store: ReleaseStore, plan: ReleasePlan, *, who: str, before: dict[str, Any]) -> State:
    """Write that a release was made. Raises :class:`ReleaseError` if it would change nothing."""
    if before == msgspec.to_builtins(typed_values(plan.candidate)):
        raise ReleaseError(f"the candidate of {plan.name} is what is in force already: {before}")
    told = {"plan": msgspec.to_builtins(plan), "digest": release_digest(plan), "who": who, "before": before}
    return store.append(Event.CREATED, **told)


def stores(folder: Path) -> list[ReleaseStore]:
    """All releases of a folder, the one that was last written to first."""
    journals = sorted(folder.glob("*/journal.jsonl"), key=lambda path: (path.stat().st_mtime, path), reverse=True)
    return [ReleaseStore(path.parent) for path in journals]


def store_for(folder: Path, plan: ReleasePlan) -> ReleaseStore:
    """The folder for a plan: that of its release if that goes on, else a new one.

    Raises :class:`ReleaseError` while another release goes on: two at once could not be told apart.
    """
    digest = release_digest(plan)
    for store in stores(folder):
        state = store.known()
        if not state.is_over:
            if state.digest == digest:
                return store
            raise ReleaseError(
                f"the release {state.plan.name} is {state.phase}: {state.message}; carry it to its end, or `ekiden "
                "release abort` it, before another begins"
            )
    name, tries = f"{plan.name}-{digest[:12]}", 1
    while (folder / (name if tries == 1 else f"{name}-{tries}")).exists():
        tries += 1
    return ReleaseStore(folder / (name if tries == 1 else f"{name}-{tries}"))


def newest(folder: Path, name: str | None = None) -> ReleaseStore:
    """The release that goes on, else the last one; of a plan's ``name`` if one is given."""
    found = [store for store in stores(folder) if name is None or store.known().plan.name == name]
    if not found:
        what = "no release" if name is None else f"no release {name!r}"
        raise ReleaseError(f"{what} in {folder}; `ekiden release start PLAN` makes one")
    return next((store for store in found if not store.known().is_over), found[0])


def shown_state(state: State) -> dict[str, Any]:
    """A state for a script, with its steps and its e-process."""
    told: dict[str, Any] = msgspec.to_builtins(state)
    told.pop("measured")
    return told | {"steps": list(STEPS), "eProcess": str(e_process(state.plan, list(state.pairs.values())))}


def may_be_approved(state: State, who: str, *, despite_inconclusive: bool) -> None:
    """Raises :class:`ReleaseError` if a person cannot approve the release now."""
    if state.phase is not Phase.PAUSED:
        raise ReleaseError(
            f"the release {state.plan.name} is {state.phase}: {state.message}; it can be approved at its horizon, "
            "while it is Paused"
        )
    if not who:
        raise ReleaseError("the server does not know this key by a name; approve with a named key (`ekiden keys new`)")
    if state.pause_conditions[0]["reason"] == "InconclusiveAnalysisRun" and not despite_inconclusive:
        raise ReleaseError(
            f"the analysis is inconclusive ({state.analysis_run.message}); --despite-inconclusive approves it anyway"
        )
