"""The evidence over HTTP.

``GET /v1/explain/{id}``: where a request's time went, for the key that made it. What belongs to another tenant is
answered like what does not exist; a key of scope ``admin`` may see every request.
``GET /v1/lineage``: what makes the answers. Names, addresses and folders are for a key of scope ``admin``.
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from ekiden.api.asgi import JsonBytes
from ekiden.api.auth import is_admin, tenant_of
from ekiden.api.errors import ApiError, ledger_off, shown
from ekiden.api.generation import Generation
from ekiden.config import Config
from ekiden.evidence.explain import Explanation, explain
from ekiden.evidence.reader import LedgerReadError
from ekiden.evidence.runs import find_request
from ekiden.ledger.records import RequestRow
from ekiden.ledger.retention import ledger_folder

_PATIENCE: Final = (0.0, 0.15, 0.3)
"""Seconds to wait before each read: the ledger is up to a fifth of a second behind the engine."""


def add_routes(app: FastAPI, generation: Generation, config: Config) -> None:
    engine, flight = generation.engine, generation.flight

    @app.get("/v1/explain/{request_id}", summary="Where a request's time went", tags=["evidence"])
    async def explain_request(request_id: str, request: Request) -> Response:
        if not config.ledger.ledger:
            raise ledger_off()
        viewer = None if is_admin(request.scope) else tenant_of(request.scope, config.server.tenant_header)
        told: list[Explanation] = []
        for pause in _PATIENCE:
            await asyncio.sleep(pause)
            # Older runs are in the same folder as the one being written.
            path = engine.ledger_path
            folder = ledger_folder(config.ledger) if path is None else path.parent
            told = await generation.text.off_loop(partial(_explain, folder, request_id, viewer))
            if (told and all(one.status != "in_flight" for one in told)) or flight.answers_of(request_id):
                break
        if not told:
            raise ApiError(
                404,
                f"The request {shown(request_id)} is not in the ledger.",
                param="request_id",
                code="request_not_found",
            )
        return JsonBytes(_whole(request_id, told))

    @app.get("/v1/lineage", summary="What makes the answers", tags=["evidence"])
    async def lineage(request: Request) -> Response:
        whole = engine.card.lineage.as_object()
        return JsonBytes(whole if is_admin(request.scope) else {**whole, "apart": {}})


def _explain(folder: Path, request_id: str, viewer: str | None) -> list[Explanation]:
    """Every answer of a call that the viewer may see."""
    try:
        reader, rows = find_request(folder, request_id)
    except LedgerReadError:
        return []
    with reader:
        return [explain(reader, row, viewer=viewer) for row in rows if _may_see(row, viewer)]


def _may_see(row: RequestRow, viewer: str | None) -> bool:
    return viewer is None or row.tenant == viewer


def _whole(request_id: str, told: list[Explanation]) -> dict[str, Any]:
    """A single answer's explanation; for several, the slowest one with all of them under ``answers``."""
    slowest: dict[str, Any] = msgspec.to_builtins(max(told, key=lambda one: one.e2e_seconds))
    if len(told) == 1:
        return slowest
    return slowest | {"request_id": request_id, "answers": msgspec.to_builtins(told)}
