"""``POST /v1/embeddings``: refused, with the reason."""

from typing import Any

from starlette.types import Receive, Scope, Send

from ekiden.api.doors.door import Doors
from ekiden.api.errors import ApiError
from ekiden.api.schema_base import Strict


class EmbeddingsRequest(Strict):
    """For the documentation; no body is taken."""

    model: str
    input: Any


async def embeddings(doors: Doors, scope: Scope, receive: Receive, send: Send) -> None:
    """Always raises :class:`ApiError` 400. The body is read first, so that the connection can be reused."""
    await doors.read_body(scope, receive)
    raise ApiError(
        400,
        f"{doors.generation.engine.card.model_id} is a model that writes text and gives no embeddings; "
        "serve a model made for embeddings elsewhere.",
        param="model",
        code="model_not_supported",
    )
