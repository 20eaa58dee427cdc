"""``/admin``: what an operator may do to a running server, with a key of scope ``admin`` and not without.

``request_id`` is the ``x-ekiden-request-id`` of a response (all answers of that call), or one answer's own id. Every
change is logged with the name of the key that asked for it.
"""

import dataclasses
import logging
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import parse_qs

import msgspec
from pydantic import Field
from starlette.types import Receive, Scope, Send

from ekiden.api.asgi import send_json
from ekiden.api.auth import require_admin
from ekiden.api.doors.door import Doors
from ekiden.api.errors import ApiError, invalid, ledger_off, ledger_unavailable, shown
from ekiden.api.schema_base import Strict, parse
from ekiden.config import Config
from ekiden.evidence.live import WINDOW_SECONDS, live_view
from ekiden.evidence.live_view import LiveView
from ekiden.evidence.reader import LedgerReader, LedgerReadError
from ekiden.ledger.retention import is_being_written

logger = logging.getLogger(__name__)

_REASONS: Final = {"pause": "paused", "resume": "resumed", "abort": "aborted"}


class RequestAction(Strict):
    request_id: Annotated[str, Field(min_length=1, max_length=100)]


class DrainAction(Strict):
    """``draining`` false opens the server again."""

    draining: bool | None = None


@dataclass(slots=True)
class AdminRoutes:
    doors: Doors
    config: Config

    async def pause(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Takes the request's answers out of the running; they keep what they have."""
        await self._act("pause", scope, receive, send)

    async def resume(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a paused request go on."""
        await self._act("resume", scope, receive, send)

    async def abort(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ends the request; its client gets an error that says so."""
        await self._act("abort", scope, receive, send)

    async def _act(self, action: str, scope: Scope, receive: Receive, send: Send) -> None:
        caller, engine = require_admin(scope), self.doors.generation.engine
        wanted = parse(RequestAction, await self.doors.read_body(scope, receive)).request_id
        ids = self.doors.generation.flight.answers_of(wanted)
        if not ids:
            raise ApiError(
                404, f"The request {shown(wanted)} is not in flight.", param="request_id", code="request_not_found"
            )
        for request_id in ids:
            match action:
                case "pause":
                    await engine.pause(request_id, caller.name)
                case "resume":
                    await engine.resume(request_id, caller.name)
                case _:
                    await engine.abort(request_id)
        logger.info("admin %s %s request %s", caller.name, _REASONS[action], wanted)
        await send_json(send, {"request_id": wanted, "status": _REASONS[action], "answers": ids})

    async def drain(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Closes the server to new requests, or opens it again; what it has already taken goes on."""
        caller, generation = require_admin(scope), self.doors.generation
        flight = generation.flight
        fields = parse(DrainAction, await self.doors.read_body(scope, receive))
        flight.closed = fields.draining is not False
        await generation.engine.drain(flight.closed)
        logger.info("admin %s %s the server", caller.name, "closed" if flight.closed else "opened")
        await send_json(send, {"draining": flight.closed, "in_flight": sum(map(len, flight.calls.values()))})

    async def policy(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The scheduling rules and limits in force."""
        require_admin(scope)
        flight = self.doors.generation.flight
        state: dict[str, Any] = {
            "draining": flight.draining or flight.closed,
            "scheduler": dataclasses.asdict(self.config.scheduler),
            "limits": dataclasses.asdict(self.config.limits),
        }
        await send_json(send, state)

    async def live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What ``ekiden top`` shows, from the ledger; ``?window=SECONDS`` says over how long its figures are taken."""
        require_admin(scope)
        if not self.config.ledger.ledger:
            raise ledger_off()
        window, path = _window(scope), self.doors.generation.engine.ledger_path
        view = None if path is None else await self.doors.generation.text.off_loop(partial(_live, path, window))
        if view is None:
            raise ledger_unavailable()
        await send_json(send, msgspec.to_builtins(view))


def _window(scope: Scope) -> float:
    asked = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get("window")
    try:
        window = WINDOW_SECONDS if asked is None else float(asked[-1])
    except ValueError:
        window = 0.0
    if not 1.0 <= window <= 600.0:
        raise invalid("window", f"window is {shown((asked or [''])[-1])}; it must be seconds from 1 to 600.")
    return window


def _live(path: Path, window: float) -> LiveView | None:
    """None when the run is not being written, because the engine is starting again."""
    if not is_being_written(path):
        return None
    try:
        with LedgerReader(path) as reader:
            return live_view(reader, now=time.time(), window_seconds=window)
    except LedgerReadError:
        return None
