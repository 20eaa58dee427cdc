"""Releases as the server's page shows them, and a person's yes to one."""

from pathlib import Path
from typing import Any

import msgspec

from ekiden.errors import UserError
from ekiden.release.plan import ReleaseError
from ekiden.release.state import Event
from ekiden.release.store import ReleaseStore, may_be_approved, shown_state, stores

MOST_RELEASES = 50


class ReleaseDesk:
    """``folder`` need not be there. A release is called by its folder's name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def listed(self) -> list[dict[str, Any]]:
        """The one that was last written to first; one whose journal was changed says so."""
        return [self._shown(store) for store in stores(self._folder)[:MOST_RELEASES]]

    def _shown(self, store: ReleaseStore) -> dict[str, Any]:
        told: dict[str, Any] = {"name": store.folder.name, "readable": True, "why": ""}
        try:
            state = store.known()
        except (UserError, OSError, msgspec.DecodeError) as error:
            return told | {"readable": False, "why": f"{error}"}
        return told | shown_state(state) | {"lacking": state.plan.approvals.needed - len(state.approvals)}

    def check(self, name: str, who: str, *, despite_inconclusive: bool) -> str:
        """Raises :class:`ReleaseError` where this person cannot approve it now; returns the name of its plan."""
        state = self._store(name).known()
        may_be_approved(state, who, despite_inconclusive=despite_inconclusive)
        return state.plan.name

    def approve(self, name: str, who: str, why: str, *, despite_inconclusive: bool) -> dict[str, Any]:
        """One person's yes; returns the release after it. Raises :class:`ReleaseError`."""
        store = self._store(name)
        may_be_approved(store.known(), who, despite_inconclusive=despite_inconclusive)
        store.append(Event.APPROVED, who=who, why=why)
        return self._shown(store)

    def _store(self, name: str) -> ReleaseStore:
        found = next((store for store in stores(self._folder) if store.folder.name == name), None)
        if found is None:
            raise ReleaseError(f"no release {name!r} in {self._folder}")
        return found
