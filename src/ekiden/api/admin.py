"""``/admin``: what an operator may do to a running server, with a key of scope ``admin`` and not without.

``request_id`` is the ``x-ekiden-request-id`` of a response (all answers of that call), or one answer's own id. Every
change is logged with the name of the key that asked for it.
"""

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from ekiden.api.asgi import JsonBytes
from ekiden.api.auth import require_admin
from ekiden.api.doors.door import Doors
from ekiden.api.errors import ApiError, engine_unavailable, invalid, ledger_off, ledger_unavailable, shown
from ekiden.api.flight import Flight
from ekiden.api.guard_routes import unfit
from ekiden.api.keys import Principal
from ekiden.api.schema_base import Strict
from ekiden.config import Config
from ekiden.engine.interface import EngineDied
from ekiden.evidence.live import WINDOW_SECONDS, live_view
from ekiden.evidence.live_view import LiveView
from ekiden.evidence.reader import LedgerReader, LedgerReadError
from ekiden.guard.approvals import ApprovalError
from ekiden.guard.people import People
from ekiden.ledger.retention import is_being_written
from ekiden.state.controls import ControlChange, ControlState, InvalidControls, SetBy, typed_values

logger = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 0.5
"""How long the answer to a drain waits for the engine's step to end."""
_CONFIGURED: Final = ControlChange(values={}, set_by=SetBy.CONFIGURATION, who="")
_REASONS: Final = {"pause": "paused", "resume": "resumed", "abort": "aborted"}


class RequestAction(Strict):
    request_id: Annotated[str, Field(min_length=1, max_length=100)]


class AbortAction(RequestAction):
    """``reason`` is recorded with the name of the key, and its client is told."""

    reason: Annotated[str, Field(max_length=500)] = ""


class DrainAction(Strict):
    """``draining`` false opens the server again; ``reason`` is recorded with the name of the key."""

    draining: bool | None = None
    reason: Annotated[str, Field(max_length=500)] = ""


class PolicyAction(Strict):
    """``set``: new values by the name of the setting, such as ``{"max_num_seqs": 8}``. Where a second person must
    agree, ``expires_in_seconds`` count from then on."""

    set: Annotated[dict[str, Any], Field(min_length=1)]
    reason: Annotated[str, Field(min_length=1, max_length=500)]
    expires_in_seconds: Annotated[float, Field(gt=0, le=30 * 86_400)] | None = None


@dataclass(slots=True)
class AdminRoutes:
    """``people``: who may have to agree to a change; None without a guard, where one person is enough."""

    doors: Doors
    config: Config
    people: People | None = None

    async def act(self, action: str, request: Request) -> Response:
        """Pauses a request, resumes it, or aborts it: its client then gets an error that says so."""
        caller, engine = require_admin(request.scope), self.doors.generation.engine
        fields = await self.doors.read(AbortAction if action == "abort" else RequestAction, request, own=True)
        wanted = fields.request_id
        ids = self.doors.generation.flight.answers_of(wanted)
        if not ids:
            message = f"The request {shown(wanted)} is not in flight."
            raise ApiError(404, message, param="request_id", code="request_not_found")
        for request_id in ids:
            match action:
                case "pause":
                    await engine.pause(request_id, caller.name)
                case "resume":
                    await engine.resume(request_id, caller.name)
                case _:
                    told = f": {fields.reason}" if isinstance(fields, AbortAction) and fields.reason else ""
                    await engine.abort(request_id, f"ended by {caller.name or 'a key without a name'}{told}")
        logger.info("admin %s %s request %s", caller.name, _REASONS[action], wanted)
        return JsonBytes({"request_id": wanted, "status": _REASONS[action], "answers": ids})

    async def drain(self, request: Request) -> Response:
        """Closes the server to new requests, or opens it again; what it has already taken goes on."""
        caller, flight = require_admin(request.scope), self.doors.generation.flight
        fields = await self.doors.read(DrainAction, request, own=True)
        if fields.draining is False and (asked := await self._ask(caller, {"draining": False}, fields.reason)):
            return JsonBytes(self._door(flight) | {"approval": asked}, status=202)
        flight.closing = fields.draining is not False  # at once, though a step may take long
        state = "closed" if flight.closing else "opened"
        call = asyncio.ensure_future(self._set_controls(caller, {"draining": flight.closing}, fields.reason))

        def settled(call: "asyncio.Future[ControlState]") -> None:
            flight.closing = None
            if not call.cancelled() and (error := call.exception()) is not None:
                logger.warning("admin %s: the server was not %s: %s", caller.name, state, error)

        call.add_done_callback(settled)
        await asyncio.wait({call}, timeout=DRAIN_SECONDS)
        if call.done():
            call.result()
        return JsonBytes(self._door(flight))

    @staticmethod
    def _door(flight: Flight) -> dict[str, Any]:
        return {"draining": flight.closed, "in_flight": sum(map(len, flight.calls.values()))}

    async def policy(self, request: Request) -> Response:
        """The scheduling rules and limits in force, and who set them."""
        require_admin(request.scope)
        return JsonBytes(self._told(self.doors.generation.engine.controls()))

    async def set_policy(self, request: Request) -> Response:
        """Changes rules and limits from the next step on: what runs and waits goes on under the new ones. Where a
        second person must agree, nothing is changed yet, and the answer is 202 with the ``approval`` that waits."""
        caller = require_admin(request.scope)
        fields = await self.doors.read(PolicyAction, request, own=True)
        if "guard" in fields.set:
            raise invalid("set", "guard says what the guard does and cannot be set; POST /admin/guard changes that.")
        if asked := await self._ask(caller, fields.set, fields.reason, fields.expires_in_seconds):
            return JsonBytes(self._told(self.doors.generation.engine.controls()) | {"approval": asked}, status=202)
        return JsonBytes(
            self._told(await self._set_controls(caller, fields.set, fields.reason, fields.expires_in_seconds))
        )

    async def _ask(
        self, caller: Principal, values: dict[str, Any], why: str, seconds: float | None = None
    ) -> dict[str, Any] | None:
        """The approval of a second person that a change now waits for; None where one is enough."""
        if self.people is None or not self.people.two_person:
            return None
        try:
            asked = await asyncio.to_thread(self.people.set_policy, values, seconds, caller.name or "", why)
        except InvalidControls as error:
            raise invalid("set", f"{error}.") from error
        except ApprovalError as error:
            raise unfit(error) from error
        if asked is not None:
            logger.info("admin %s asks to set %s: %s", caller.name, shown(values, 500), shown(why, 500))
        return asked

    async def _set_controls(
        self, caller: Principal, values: dict[str, Any], why: str = "", seconds: float | None = None
    ) -> ControlState:
        try:
            change = ControlChange(
                values=typed_values(values),
                set_by=SetBy.PERSON,
                who=caller.name or "",
                why=why,
                expires_at=None if seconds is None else time.monotonic() + seconds,
            )
            state = await self.doors.generation.engine.set_controls(change)
        except InvalidControls as error:
            raise invalid("set", f"{error}.") from error
        except EngineDied as error:
            raise engine_unavailable() from error
        logger.info("admin %s set %s: %s", caller.name, shown(values, 500), shown(why, 500))
        return state

    def _told(self, state: ControlState) -> dict[str, Any]:
        flight = self.doors.generation.flight
        draining = flight.draining or flight.closed
        two_person = self.people is not None and self.people.two_person
        told = {"epoch": state.controls.epoch, "draining": draining, "two_person": two_person}
        server = {"address": self.config.server.address, "model": self.doors.generation.engine.card.model_id}
        return told | {"server": server, "controls": controls_told(state)}

    async def live(self, request: Request) -> Response:
        """What ``ekiden top`` shows, from the ledger; ``?window=SECONDS`` says over how long its figures are taken."""
        require_admin(request.scope)
        if not self.config.ledger.ledger:
            raise ledger_off()
        window, path = _window(request), self.doors.generation.engine.ledger_path
        view = None if path is None else await self.doors.generation.text.off_loop(partial(_live, path, window))
        if view is None:
            raise ledger_unavailable()
        return JsonBytes(view)


def controls_told(state: ControlState) -> dict[str, dict[str, Any]]:
    """Each control with its value and who set it."""
    now = time.monotonic()
    set_by = {name: change for change in state.changes_at(now) for name in change.values}
    controls: dict[str, dict[str, Any]] = {}
    for name, value in msgspec.to_builtins(state.controls).items():
        change = set_by.get(name, _CONFIGURED)
        controls[name] = {
            "value": value,
            "set_by": change.set_by,
            "who": change.who,
            "why": change.why,
            "expires_in_seconds": None if change.expires_at is None else round(change.expires_at - now, 3),
        }
    del controls["epoch"]
    return controls


def _window(request: Request) -> float:
    asked = request.query_params.get("window")
    try:
        window = WINDOW_SECONDS if asked is None else float(asked)
    except ValueError:
        window = 0.0
    if not 1.0 <= window <= 600.0:
        raise invalid("window", f"window is {shown(asked or '')}; it must be seconds from 1 to 600.")
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
