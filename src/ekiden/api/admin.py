"""``/admin``: what an operator may do to a running server, with a key of scope ``admin`` and not without.

``request_id`` is the ``x-ekiden-request-id`` of a response (all answers of that call), or one answer's own id. Every
change is logged with the name of the key that asked for it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final
from urllib.parse import parse_qs

import msgspec
from pydantic import Field
from starlette.types import Receive, Scope, Send

from ekiden.api.auth import require_admin
from ekiden.api.context import ApiContext
from ekiden.api.errors import ApiError, engine_unavailable, invalid, ledger_off, ledger_unavailable, shown
from ekiden.api.keys import Principal
from ekiden.api.responses import send_json
from ekiden.api.schema_base import Strict, parse
from ekiden.engine.interface import EngineDied
from ekiden.evidence.live import WINDOW_SECONDS, live_view
from ekiden.evidence.live_view import LiveView
from ekiden.evidence.reader import LedgerReader, LedgerReadError
from ekiden.ledger.retention import is_being_written, ledger_folder, runs_in
from ekiden.state.controls import ControlChange, ControlState, InvalidControls, SetBy, typed_values

logger = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 0.5
"""How long the answer to a drain waits for the engine's step to end."""
_CONFIGURED: Final = ControlChange(values={}, set_by=SetBy.CONFIGURATION, who="")
_REASONS: Final = {"pause": "paused", "resume": "resumed", "abort": "aborted"}


class RequestAction(Strict):
    request_id: Annotated[str, Field(min_length=1, max_length=100)]


class DrainAction(Strict):
    """``draining`` false opens the server again."""

    draining: bool | None = None


class PolicyAction(Strict):
    """``set``: new values by the name of the setting, such as ``{"max_num_seqs": 8}``."""

    set: Annotated[dict[str, Any], Field(min_length=1)]
    reason: Annotated[str, Field(min_length=1, max_length=500)]
    expires_in_seconds: Annotated[float, Field(gt=0, le=30 * 86_400)] | None = None


async def pause(context: ApiContext, scope: Scope, receive: Receive, send: Send) -> None:
    """Takes the request's answers out of the running; they keep what they have."""
    await _act(context, scope, receive, send, "pause", context.engine.pause, named=True)


async def resume(context: ApiContext, scope: Scope, receive: Receive, send: Send) -> None:
    """Lets a paused request go on."""
    await _act(context, scope, receive, send, "resume", context.engine.resume, named=True)


async def abort(context: ApiContext, scope: Scope, receive: Receive, send: Send) -> None:
    """Ends the request; its client gets an error that says so."""
    await _act(context, scope, receive, send, "abort", context.engine.abort)


async def _act(
    context: ApiContext,
    scope: Scope,
    receive: Receive,
    send: Send,
    action: str,
    do: Callable[..., Awaitable[None]],
    *,
    named: bool = False,
) -> None:
    """``named``: the engine records who asked for it."""
    caller = require_admin(scope)
    wanted = parse(RequestAction, await context.read_body(scope, receive)).request_id
    ids = context.answers_of(wanted)
    if not ids:
        raise ApiError(
            404, f"The request {shown(wanted)} is not in flight.", param="request_id", code="request_not_found"
        )
    for request_id in ids:
        await (do(request_id, caller.name) if named else do(request_id))
    logger.info("admin %s %s request %s", caller.name, _REASONS[action], wanted)
    await send_json(send, {"request_id": wanted, "status": _REASONS[action], "answers": ids})


async def drain(context: ApiContext, scope: Scope, receive: Receive, send: Send) -> None:
    """Closes the server to new requests, or opens it again; what it has already taken goes on."""
    caller = require_admin(scope)
    fields = parse(DrainAction, await context.read_body(scope, receive))
    context.closing = fields.draining is not False  # at once, though a step may take long
    call = asyncio.ensure_future(_set_controls(context, caller, {"draining": context.closing}))

    def settled(call: "asyncio.Future[ControlState]") -> None:
        context.closing = None

    call.add_done_callback(settled)
    await asyncio.wait({call}, timeout=DRAIN_SECONDS)
    if call.done():
        call.result()
    await send_json(send, {"draining": context.closed, "in_flight": sum(map(len, context.in_flight.values()))})


async def policy(context: ApiContext, scope: Scope, receive: Receive, send: Send) -> None:
    """The scheduling rules and limits in force, and who set them."""
    require_admin(scope)
    await send_json(send, _told(context, context.engine.controls()))


async def set_policy(context: ApiContext, scope: Scope, receive: Receive, send: Send) -> None:
    """Changes rules and limits from the next step on: what runs and waits goes on under the new ones."""
    caller = require_admin(scope)
    fields = parse(PolicyAction, await context.read_body(scope, receive))
    state = await _set_controls(context, caller, fields.set, fields.reason, fields.expires_in_seconds)
    await send_json(send, _told(context, state))


async def _set_controls(
    context: ApiContext, caller: Principal, values: dict[str, Any], why: str = "", seconds: float | None = None
) -> ControlState:
    try:
        change = ControlChange(
            values=typed_values(values),
            set_by=SetBy.PERSON,
            who=caller.name or "",
            why=why,
            expires_at=None if seconds is None else time.monotonic() + seconds,
        )
        state = await context.engine.set_controls(change)
    except InvalidControls as error:
        raise invalid("set", f"{error}.") from error
    except EngineDied as error:
        raise engine_unavailable() from error
    logger.info("admin %s set %s: %s", caller.name, shown(values, 500), shown(why, 500))
    return state


def _told(context: ApiContext, state: ControlState) -> dict[str, Any]:
    """Each control with its value and who set it."""
    now, set_by = time.monotonic(), {name: change for change in state.changes for name in change.values}
    controls: dict[str, Any] = {}
    for name, value in msgspec.to_builtins(state.controls).items():
        change = set_by.get(name, _CONFIGURED)
        controls[name] = {
            "value": value,
            "set_by": change.set_by,
            "who": change.who,
            "why": change.why,
            "expires_in_seconds": None if change.expires_at is None else round(max(0.0, change.expires_at - now), 3),
        }
    epoch = controls.pop("epoch")["value"]
    return {"epoch": epoch, "draining": context.draining or context.closed, "controls": controls}


async def live(context: ApiContext, scope: Scope, receive: Receive, send: Send) -> None:
    """What ``ekiden top`` shows, from the ledger; ``?window=SECONDS`` says over how long its figures are taken."""
    require_admin(scope)
    if not context.config.ledger.ledger:
        raise ledger_off()
    window = _window(scope)
    view = await context.off_loop(lambda: _live(context, window))
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


def _live(context: ApiContext, window: float) -> LiveView | None:
    """The newest run of this engine that is being written; other servers may record to the same folder."""
    card = context.engine.card
    for path in runs_in(ledger_folder(context.config.ledger)):
        if not is_being_written(path):
            continue
        try:
            with LedgerReader(path) as reader:
                if (reader.header.model_id, reader.header.fingerprint) == (card.model_id, card.fingerprint):
                    return live_view(reader, now=time.time(), window_seconds=window)
        except LedgerReadError:
            continue  # another version's, or deleted meanwhile
    return None
