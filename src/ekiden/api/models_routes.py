"""``/v1/models`` and ``/v1/models/{id}``: the one model this server serves."""

from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from ekiden.api.context import ApiContext
from ekiden.api.responses import JsonBytes


def model_object(context: ApiContext) -> dict[str, Any]:
    card = context.engine.card
    return {
        "id": card.model_id,
        "object": "model",
        "created": card.created,
        "owned_by": "ekiden",
        "max_model_len": card.max_model_len,
    }


def add_routes(app: FastAPI, context: ApiContext) -> None:
    @app.get("/v1/models", summary="Models", tags=["models"])
    async def list_models() -> Response:
        return JsonBytes({"object": "list", "data": [model_object(context)]})

    @app.get("/v1/models/{model_id:path}", summary="One model", tags=["models"])
    async def retrieve_model(model_id: str) -> Response:
        context.check_model(model_id)
        return JsonBytes(model_object(context))
