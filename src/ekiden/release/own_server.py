"""The server in whose process a release is acted on, such as from its page: no HTTP, and the person is known."""

import asyncio
import concurrent.futures
import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ekiden.api.admin import controls_told
from ekiden.engine.interface import Engine, EngineDied
from ekiden.evidence.reader import LedgerReader, LedgerReadError
from ekiden.guard.approvals import RELEASE
from ekiden.guard.people import People
from ekiden.release.plan import ReleaseError
from ekiden.release.server import PATIENCE, Asked, OutOfReach, Told
from ekiden.release.state import Place
from ekiden.state.controls import ControlChange, ControlState, InvalidControls, SetBy, typed_values


class OwnServer:
    """A :class:`ekiden.release.server.Server` for threads beside the event loop of its engine. ``who`` acts;
    ``people`` says where a second person must agree. ``place``: which server it is."""

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        who: str,
        people: People | None = None,
        place: Place | None = None,
    ) -> None:
        self._engine, self._loop, self._who, self._people, self._place = engine, loop, who, people, place

    def policy(self) -> dict[str, Told]:
        return _told(self._engine.controls())

    def set(self, values: Mapping[str, Any], *, why: str, seconds: float | None) -> dict[str, Told]:
        try:
            if self._people is not None and (names := self._people.needs_second(values)):
                raise ReleaseError(
                    f"a second person must let the release set {', '.join(names)}; start it again with its plan "
                    "(`ekiden release start`), which asks for that"
                )
            change = ControlChange(
                values=typed_values(values),
                set_by=SetBy.PERSON,
                who=self._who,
                why=why[:500],
                expires_at=None if seconds is None else time.monotonic() + seconds,
            )
            answer = asyncio.run_coroutine_threadsafe(self._engine.set_controls(change), self._loop)
            return _told(answer.result(PATIENCE))
        except InvalidControls as error:
            raise ReleaseError(f"the server refuses the change: {error}") from error
        except (EngineDied, TimeoutError, concurrent.futures.CancelledError, RuntimeError) as error:
            raise OutOfReach(f"the engine does not answer: {error}") from error

    def place(self) -> Place | None:
        return self._place

    def leave(self, subject: str, values: Mapping[str, Sequence[Any]], *, why: str) -> str:
        if self._people is None or not self._people.two_person:
            return ""
        asked = self._people.let_release(subject, {name: list(each) for name, each in values.items()}, self._who, why)
        return msgspec.convert(asked, Asked).waits_for

    def end_leave(self, subject: str, *, why: str) -> None:
        if self._people is not None and self._people.two_person:
            for each in msgspec.convert(self._people.approvals(), list[Asked]):
                if (each.kind, each.subject) == (RELEASE, subject) and each.state in ("open", "approved"):
                    self._people.withdraw(each.id, self._who, why)

    def ledger(self) -> LedgerReader:
        path = self._engine.ledger_path
        try:
            if path is None:
                raise OutOfReach("the engine records no run now")
            return LedgerReader(path)
        except (LedgerReadError, sqlite3.Error, OSError) as error:
            raise OutOfReach(f"the ledger of the server cannot be read: {error}") from error


def _told(state: ControlState) -> dict[str, Told]:
    return msgspec.convert(controls_told(state), dict[str, Told])
