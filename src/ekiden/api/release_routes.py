"""``/admin/releases``: the releases of this machine, and a person's yes or no to them, with a key of scope ``admin``.

What a release is lies above the API, so it is given in (:class:`Releases`). Each act names the key and the reason, and
is recorded in the ledger and in the release's journal.
"""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from ekiden.api.asgi import JsonBytes
from ekiden.api.auth import require_admin
from ekiden.api.doors.door import Doors
from ekiden.api.errors import ApiError, shown
from ekiden.api.schema_base import Strict
from ekiden.errors import UserError

logger = logging.getLogger(__name__)


class Releases(Protocol):
    """Every method may take long, and is called on a thread."""

    def releases(self) -> list[dict[str, Any]]:
        """The releases, the one last written to first."""

    def act(self, action: str, name: str, who: str, why: str, *, despite_inconclusive: bool = False) -> dict[str, Any]:
        """Do it in the name of ``who``; returns the release. Raises :class:`ekiden.errors.UserError`."""


class ReleaseAction(Strict):
    """``despite_inconclusive`` approves although the analysis could not decide."""

    action: Literal["approve", "promote", "abort"]
    name: Annotated[str, Field(min_length=1, max_length=200)]
    reason: Annotated[str, Field(min_length=1, max_length=500)]
    despite_inconclusive: bool = False


@dataclass(slots=True)
class ReleaseRoutes:
    doors: Doors
    known: Releases

    async def releases(self, request: Request) -> Response:
        """Phase, step, pairs and approvals of each release."""
        require_admin(request.scope)
        return JsonBytes({"releases": await asyncio.to_thread(self.known.releases)})

    async def act(self, request: Request) -> Response:
        """Approves a release at its horizon, promotes an approved one, or takes one out."""
        caller = require_admin(request.scope)
        fields = await self.doors.read(ReleaseAction, request, own=True)
        work = partial(
            self.known.act,
            fields.action,
            fields.name,
            caller.name or "",
            fields.reason,
            despite_inconclusive=fields.despite_inconclusive,
        )
        try:
            told = await asyncio.to_thread(work)
        except UserError as error:
            message = f"{str(error)[:1].upper()}{str(error)[1:]}."
            raise ApiError(409, message, code="release_state") from error
        logger.info("admin %s release: %s %s: %s", caller.name, fields.action, shown(fields.name, 200),
                    shown(fields.reason, 500))  # fmt: skip
        return JsonBytes(told)
