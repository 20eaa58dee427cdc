"""What the server's page sees of releases, and what persons do to them there: approve, promote, abort."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from ekiden.engine.interface import Engine
from ekiden.errors import UserError
from ekiden.guard.people import People
from ekiden.release import acts
from ekiden.release.own_server import OwnServer
from ekiden.release.plan import ReleaseError
from ekiden.release.state import Place
from ekiden.release.store import ReleaseStore, shown_state, stores

MOST_RELEASES: Final = 50


@dataclass(frozen=True, slots=True)
class ReleaseDesk:
    """Implements :class:`ekiden.dashboard.ports.Releases`. A release is called by its folder's name.

    ``folder`` need not be there. ``loop`` is the engine's event loop. ``people`` says where a second person must agree.
    ``place``: which server it is.
    """

    folder: Path
    engine: Engine
    loop: asyncio.AbstractEventLoop
    people: People | None = None
    place: Place | None = None

    def listed(self) -> list[dict[str, Any]]:
        """The one that was last written to first; one whose journal was changed says so."""
        return [_shown(store) for store in stores(self.folder)[:MOST_RELEASES]]

    def act(self, action: str, name: str, who: str, why: str, *, despite_inconclusive: bool = False) -> dict[str, Any]:
        """Do it in the name of ``who``; returns the release. Raises :class:`ReleaseError`."""
        store = next((store for store in stores(self.folder) if store.folder.name == name), None)
        if store is None:
            raise ReleaseError(f"there is no release {name!r} in {self.folder}")
        server = OwnServer(self.engine, self.loop, who, self.people, self.place)
        match action:
            case "approve":
                acts.approve(store, server, why, despite_inconclusive=despite_inconclusive)
            case "promote":
                acts.promote(store, server)
            case _:
                acts.abort(store, server, why)
        return _shown(store)


def _shown(store: ReleaseStore) -> dict[str, Any]:
    told: dict[str, Any] = {"name": store.folder.name, "readable": True, "why": ""}
    try:
        state = store.known()
    except (UserError, OSError, msgspec.DecodeError) as error:
        return told | {"readable": False, "why": str(error)}
    lacking = max(0, state.plan.approvals.needed - len(state.approvals))
    return told | shown_state(state) | {"pairs": len(state.pairs), "lacking": lacking}
