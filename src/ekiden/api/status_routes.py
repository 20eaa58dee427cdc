"""Probes and facts: ``/health``, ``/ready``, ``/metrics``, ``/version``, ``/load``.

``/health`` is 200 while tokens can move, and 503 otherwise: restart what stays at 503. ``/ready`` is also 503 once the
server drains: send it no new work.
"""

from typing import Any, Final

from fastapi import FastAPI
from starlette.responses import PlainTextResponse, Response

from ekiden.api.asgi import JsonBytes
from ekiden.api.flight import Flight
from ekiden.api.metrics import CONTENT_TYPE, ApiMetrics
from ekiden.engine.interface import Engine, EngineStats, Health
from ekiden.version import __version__

_STATUS: Final = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}


def add_routes(app: FastAPI, engine: Engine, flight: Flight, metrics: ApiMetrics) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get(
        "/health",
        summary="Alive",
        tags=["status"],
        response_class=Response,
        responses={503: {"description": "No tokens can move"}},
    )
    async def health() -> Response:
        return Response(status_code=200 if engine.health is Health.OK else 503)

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
        return JsonBytes({"status": status}, status=200 if status == Health.OK else 503)

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
        return JsonBytes(load_object(engine.stats()))


def load_object(stats: EngineStats) -> dict[str, Any]:
    return {
        "server_load": stats.num_running + stats.num_waiting + stats.num_paused + stats.num_preempted,
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "paused": stats.num_paused,
        "preempted": stats.num_preempted,
        "waiting_tokens": stats.waiting_tokens,
        "kv_blocks_used": stats.kv_blocks_used,
        "kv_blocks_total": stats.kv_blocks_total,
    }
