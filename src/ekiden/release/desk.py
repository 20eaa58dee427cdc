"""What the server's page sees of releases, and what persons do to them there: approve, promote, abort.

The statistics behind a release take a second to import, so that is left until somebody looks: most servers have none.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ekiden.engine.interface import Engine

if TYPE_CHECKING:
    from ekiden.release.store import ReleaseStore

MOST_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class ReleaseDesk:
    """Implements :class:`ekiden.api.release_routes.Releases`. Every method may take long, and is called on a thread.

    ``loop`` gives the engine's event loop. ``folder`` is where releases are kept, if not where ``ekiden release`` does.
    """

    engine: Engine
    loop: Callable[[], asyncio.AbstractEventLoop]
    folder: str | None = None

    def releases(self) -> list[dict[str, Any]]:
        """The releases, the one last written to first; one that cannot be read says ``why``."""
        from ekiden.release.store import stores

        return [_shown(store) for store in stores(self._where)[:MOST_SHOWN]]

    def act(self, action: str, name: str, who: str, why: str, *, despite_inconclusive: bool = False) -> dict[str, Any]:
        """Do it in the name of ``who``; returns the release. Raises :class:`ekiden.release.plan.ReleaseError`."""
        from ekiden.release import acts
        from ekiden.release.own_server import OwnServer
        from ekiden.release.store import newest

        store, server = newest(self._where, name), OwnServer(self.engine, self.loop(), who)
        match action:
            case "approve":
                acts.approve(store, server, why, despite_inconclusive=despite_inconclusive)
            case "promote":
                acts.promote(store, server)
            case _:
                acts.abort(store, server, why)
        return _shown(store)

    @property
    def _where(self) -> Path:
        from ekiden.release.store import release_folder

        return release_folder(self.folder)


def _shown(store: "ReleaseStore") -> dict[str, Any]:
    from ekiden.release.plan import ReleaseError
    from ekiden.release.store import shown_state

    told: dict[str, Any] = {"folder": store.folder.name, "changed": (store.folder / "journal.jsonl").stat().st_mtime}
    try:
        state = store.known()
        return told | shown_state(state) | {"pairs": len(state.pairs)}
    except ReleaseError as error:
        return told | {"why": str(error)}
