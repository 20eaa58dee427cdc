"""What a server says of itself: its health, figures, version and models, and its documentation.

``/health`` is 200 while tokens can move, and 503 otherwise: restart what stays at 503. ``/ready`` is also 503 once the
server drains: send it no new work. Where a guard was asked for, both say whether it watches: a guard that fails does
not make the server unhealthy. ``/docs`` shows the endpoints and their fields, drawn from ``/openapi.json`` by a
page with its style and script inside, so that it works without a network and lets no other server know who reads it;
its content policy forbids anything else.
"""

from importlib.resources import files
from typing import Any, Final

from fastapi import FastAPI
from starlette.responses import PlainTextResponse, Response

from ekiden.api.asgi import JsonBytes
from ekiden.api.doors.door import Doors
from ekiden.api.metrics import CONTENT_TYPE, ApiMetrics
from ekiden.engine.interface import Health, ModelCard
from ekiden.guard.runtime import Guard
from ekiden.version import __version__

_STATUS: Final = {
    "type": "object",
    "properties": {"status": {"type": "string"}, "guard": {"type": "string"}},
    "required": ["status"],
}
_DOCS_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'"
)


def add_routes(app: FastAPI, doors: Doors, metrics: ApiMetrics, guard: Guard | None = None) -> None:
    engine, flight = doors.generation.engine, doors.generation.flight
    page = files("ekiden.api").joinpath("docs.html").read_bytes()

    @app.head("/health", include_in_schema=False)
    @app.get(
        "/health",
        summary="Alive",
        tags=["status"],
        response_class=Response,
        responses={503: {"description": "No tokens can move"}},
    )
    async def health() -> Response:
        return Response(status_code=200 if engine.health is Health.OK else 503, headers=_guard_header(guard))

    @app.head("/ready", include_in_schema=False)
    @app.get(
        "/ready",
        summary="Ready for new work",
        tags=["status"],
        responses={503: {"description": "Not ready", "content": {"application/json": {"schema": _STATUS}}}},
    )
    async def ready() -> Response:
        health = engine.health
        status = "draining" if flight.draining or flight.closed else health.value
        told = {"status": status} if guard is None or guard.state == "off" else {"status": status, "guard": guard.state}
        return JsonBytes(told, status=200 if status == Health.OK else 503)

    @app.get("/metrics", summary="Prometheus metrics", tags=["status"], response_class=PlainTextResponse)
    async def prometheus() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    @app.get("/version", summary="Version", tags=["status"])
    async def version() -> Response:
        card = engine.card
        return JsonBytes(
            {"version": __version__, "model": card.model_id, "system_fingerprint": card.fingerprint}
            | {"details": card.details}
        )

    @app.get("/load", summary="Load", tags=["status"])
    async def load() -> Response:
        stats = engine.stats()
        return JsonBytes(
            {
                "server_load": stats.num_running + stats.num_waiting + stats.num_paused + stats.num_preempted,
                "running": stats.num_running,
                "waiting": stats.num_waiting,
                "paused": stats.num_paused,
                "preempted": stats.num_preempted,
                "waiting_tokens": stats.waiting_tokens,
                "kv_blocks_used": stats.kv_blocks_used,
                "kv_blocks_total": stats.kv_blocks_total,
            }
        )

    @app.get("/v1/models", summary="Models", tags=["models"])
    async def list_models() -> Response:
        return JsonBytes({"object": "list", "data": [_model(engine.card)]})

    @app.get("/v1/models/{model_id:path}", summary="One model", tags=["models"])
    async def retrieve_model(model_id: str) -> Response:
        doors.check_model(model_id)
        return JsonBytes(_model(engine.card))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(page, media_type="text/html", headers={"content-security-policy": _DOCS_POLICY})


def _guard_header(guard: Guard | None) -> dict[str, str] | None:
    """Says whether a guard that was asked for watches: ok, paused or failing."""
    return None if guard is None or guard.state == "off" else {"x-ekiden-guard": guard.state}


def _model(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.model_id,
        "object": "model",
        "created": card.created,
        "owned_by": "ekiden",
        "max_model_len": card.max_model_len,
    }
