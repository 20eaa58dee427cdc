"""``POST /admin/releases``: a person's yes to a change of the scheduling that waits for one at its horizon."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from ekiden.api.admin import AdminRoutes
from ekiden.api.asgi import JsonBytes
from ekiden.api.auth import require_admin
from ekiden.api.errors import ApiError, shown
from ekiden.api.schema_base import Strict
from ekiden.dashboard.ports import Releases
from ekiden.errors import UserError

T = TypeVar("T")
logger = logging.getLogger(__name__)

ACT_SECONDS: Final = 1.0
"""How long an act is among the controls in force: long enough to be recorded. What a block says there comes back."""


class ReleaseAction(Strict):
    """``name``: a release, as the page's list names it."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    reason: Annotated[str, Field(min_length=1, max_length=500)]
    despite_inconclusive: bool = False


@dataclass(slots=True)
class ReleaseRoutes:
    admin: AdminRoutes
    releases: Callable[[], Releases]

    async def approve(self, request: Request) -> Response:
        """The server's ledger records the act, with the name of the key, before the release's journal does."""
        caller = require_admin(request.scope)
        fields = await self.admin.doors.read(ReleaseAction, request, own=True)
        who, despite = caller.name or "", fields.despite_inconclusive

        def check() -> str:
            return self.releases().check(fields.name, who, despite_inconclusive=despite)

        def approve() -> dict[str, Any]:
            return self.releases().approve(fields.name, who, fields.reason, despite_inconclusive=despite)

        plan = await _asked(check)
        await self.admin.put_in_force(caller, {"release": f"{plan}: approved"}, fields.reason, ACT_SECONDS)
        told = await _asked(approve)
        logger.info("admin %s approved release %s: %s", who, shown(fields.name, 200), shown(fields.reason, 500))
        return JsonBytes(told)


async def _asked(work: Callable[[], T]) -> T:
    """What ``work`` gives, on a thread that may wait for files."""
    try:
        return await asyncio.to_thread(work)
    except UserError as error:
        raise ApiError(409, f"{str(error)[:1].upper()}{str(error)[1:]}.", code="release_state") from error
