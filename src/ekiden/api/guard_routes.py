"""``/admin/guard`` and ``/admin/approvals``: what persons see of the guard and do to it, with a key of scope ``admin``.

Each act names the key and the reason, and is recorded in the ledger. What needs a second person is answered 202.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from ekiden.api.asgi import JsonBytes
from ekiden.api.auth import require_admin
from ekiden.api.doors.door import Doors
from ekiden.api.errors import ApiError, engine_unavailable, invalid, shown
from ekiden.api.keys import Principal
from ekiden.api.schema_base import Strict
from ekiden.guard.approvals import RELEASE, ApprovalError
from ekiden.guard.hands import NoAnswer
from ekiden.guard.people import People
from ekiden.state.controls import InvalidControls

logger = logging.getLogger(__name__)

Told = TypeVar("Told")
_Name = Annotated[str, Field(min_length=1, max_length=100)]
_Reason = Annotated[str, Field(min_length=1, max_length=500)]


class GuardAction(Strict):
    """``rule`` says for which rule; ``pause`` and ``resume`` are for all. ``override`` needs ``expires_in_seconds``."""

    action: Literal["acknowledge", "override", "end_override", "pause", "resume"]
    reason: _Reason
    rule: _Name | None = None
    expires_in_seconds: Annotated[float, Field(gt=0, le=30 * 86_400)] | None = None


class ApprovalAction(Strict):
    """``open`` asks for one (``kind`` and ``subject`` say of what); the others settle the one called ``id``.
    ``values``: of a release, the values that it may give each control while it goes on."""

    action: Literal["open", "approve", "refuse", "withdraw"]
    reason: _Reason
    id: _Name | None = None
    kind: _Name | None = None
    subject: _Name | None = None
    needed: Annotated[int, Field(ge=1, le=2)] | None = None
    values: Annotated[dict[str, list[Any]], Field(min_length=1)] | None = None


@dataclass(slots=True)
class GuardRoutes:
    doors: Doors
    people: People

    async def state(self, request: Request) -> Response:
        """The rules with what they see, what is in force, what waits for a person, and the newest decisions."""
        require_admin(request.scope)
        return JsonBytes(await asyncio.to_thread(self.people.view))

    async def act(self, request: Request) -> Response:
        """Acknowledges a rule, takes it out of force for a while, or pauses all of them."""
        caller = require_admin(request.scope)
        fields = await self.doors.read(GuardAction, request, own=True)
        who, why, people = caller.name or "", fields.reason, self.people
        match fields.action:
            case "acknowledge":
                work: Callable[[], Any] = partial(people.acknowledge, _given("rule", fields.rule), who, why)
            case "override":
                if fields.expires_in_seconds is None:
                    raise invalid("expires_in_seconds", "expires_in_seconds is missing; an override must end.")
                work = partial(people.override, _given("rule", fields.rule), fields.expires_in_seconds, who, why)
            case "end_override":
                work = partial(people.end_override, _given("rule", fields.rule), who, why)
            case "pause":
                work = partial(people.pause, fields.expires_in_seconds, who, why)
            case "resume":
                work = partial(people.resume, who, why)
        asked = await self._do(caller, f"{fields.action} {fields.rule or ''}".strip(), why, work)
        waits = isinstance(asked, dict) and asked["state"] == "open"
        told = {"approval": asked, "guard": await asyncio.to_thread(self.people.view)}
        return JsonBytes(told, status=202 if waits else 200)

    async def approvals(self, request: Request) -> Response:
        """All approvals, the newest first."""
        require_admin(request.scope)
        return JsonBytes({"approvals": await asyncio.to_thread(self.people.approvals)})

    async def approve(self, request: Request) -> Response:
        """One person's yes or no, or a new question."""
        caller = require_admin(request.scope)
        fields = await self.doors.read(ApprovalAction, request, own=True)
        who, why, people = caller.name or "", fields.reason, self.people
        match fields.action:
            case "open":
                kind, subject = _given("kind", fields.kind), _given("subject", fields.subject)
                work = partial(people.open, kind, subject, who, why, needed=fields.needed)
                if fields.values is not None:
                    if kind != RELEASE:
                        raise invalid("values", f"values are of a release, and kind is {shown(kind)}.")
                    work = partial(people.let_release, subject, fields.values, who, why)
            case "withdraw":
                work = partial(people.withdraw, _given("id", fields.id), who, why)
            case _:
                yes = fields.action == "approve"
                work = partial(people.approve, _given("id", fields.id), who, why, yes=yes)
        asked = await self._do(caller, f"{fields.action} {fields.id or ''}".strip(), why, work)
        return JsonBytes(asked, status=202 if asked["state"] == "open" and fields.action == "approve" else 200)

    async def _do(self, caller: Principal, what: str, why: str, work: Callable[[], Told]) -> Told:
        try:
            told = await asyncio.to_thread(work)
        except ApprovalError as error:
            raise unfit(error) from error
        except InvalidControls as error:
            raise invalid("values", f"{error}.") from error
        except NoAnswer as error:
            raise engine_unavailable() from error
        logger.info("admin %s guard: %s: %s", caller.name, shown(what, 200), shown(why, 500))
        return told


def unfit(error: ApprovalError) -> ApiError:
    """The answer to what does not fit the state of the guard's approvals."""
    message = f"{str(error)[:1].upper()}{str(error)[1:]}."
    return ApiError(409 if error.known else 404, message, code="guard_state")


def _given(name: str, value: str | None) -> str:
    if value is None:
        raise invalid(name, f"{name} is missing; this action needs it.")
    return value
