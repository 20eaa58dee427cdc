"""``POST /admin/releases``: a person's yes or no to a change of the scheduling, with a key of scope ``admin``.

Each act names the key and the reason, and is recorded in the ledger and in the release's journal.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from ekiden.api.asgi import JsonBytes
from ekiden.api.auth import require_admin
from ekiden.api.doors.door import Doors
from ekiden.api.errors import ApiError, shown
from ekiden.api.schema_base import Strict
from ekiden.dashboard.ports import Releases
from ekiden.errors import UserError

logger = logging.getLogger(__name__)


class ReleaseAction(Strict):
    """``name``: a release, as the page's list names it. ``despite_inconclusive`` approves although the analysis could
    not decide."""

    action: Literal["approve", "promote", "abort"]
    name: Annotated[str, Field(min_length=1, max_length=200)]
    reason: Annotated[str, Field(min_length=1, max_length=500)]
    despite_inconclusive: bool = False


@dataclass(slots=True)
class ReleaseRoutes:
    doors: Doors
    releases: Callable[[], Releases]

    async def act(self, request: Request) -> Response:
        """Approves a release at its horizon, promotes an approved one, or takes one out."""
        caller = require_admin(request.scope)
        fields = await self.doors.read(ReleaseAction, request, own=True)
        who, despite = caller.name or "", fields.despite_inconclusive

        def act() -> dict[str, Any]:
            return self.releases().act(fields.action, fields.name, who, fields.reason, despite_inconclusive=despite)

        try:
            told = await asyncio.to_thread(act)
        except UserError as error:
            raise ApiError(409, f"{str(error)[:1].upper()}{str(error)[1:]}.", code="release_state") from error
        logger.info(
            "admin %s %s release %s: %s", who, fields.action, shown(fields.name, 200), shown(fields.reason, 500)
        )
        return JsonBytes(told)
