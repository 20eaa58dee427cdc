"""``/v1/models`` and ``/v1/models/{id}``: the one model this server serves."""

from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from ekiden.api.asgi import JsonBytes
from ekiden.api.doors.door import Doors
from ekiden.engine.interface import ModelCard


def model_object(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.model_id,
        "object": "model",
        "created": card.created,
        "owned_by": "ekiden",
        "max_model_len": card.max_model_len,
    }


def add_routes(app: FastAPI, doors: Doors) -> None:
    engine = doors.generation.engine

    @app.get("/v1/models", summary="Models", tags=["models"])
    async def list_models() -> Response:
        return JsonBytes({"object": "list", "data": [model_object(engine.card)]})

    @app.get("/v1/models/{model_id:path}", summary="One model", tags=["models"])
    async def retrieve_model(model_id: str) -> Response:
        doors.check_model(model_id)
        return JsonBytes(model_object(engine.card))
