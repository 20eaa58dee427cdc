"""Responses sent straight to the ASGI server, without a framework layer for each chunk."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ekiden.api.errors import ApiError, Headers, body_for

Run = Callable[[Scope, Receive, Send], Awaitable[None]]


class AsgiResponse(Response):
    """A response that runs a handler with ``receive`` and ``send`` when the ASGI server calls it.

    An :class:`ApiError` raised before the first byte becomes an ordinary error response.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._run(scope, receive, send)


async def send_bytes(send: Send, status: int, body: bytes, *, headers: Headers = ()) -> None:
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_json(send: Send, payload: Any, *, status: int = 200, headers: Headers = ()) -> None:
    await send_bytes(send, status, msgspec.json.encode(payload), headers=headers)


async def send_error(send: Send, path: str, error: ApiError) -> None:
    await send_bytes(send, error.status, body_for(path, error), headers=error.headers)


class JsonBytes(Response):
    """A JSON response, encoded with msgspec."""

    media_type = "application/json"

    def __init__(self, payload: Any, *, status: int = 200) -> None:
        super().__init__(msgspec.json.encode(payload), status_code=status)


class ErrorResponse(Response):
    """An :class:`ApiError` as a response."""

    media_type = "application/json"

    def __init__(self, path: str, error: ApiError) -> None:
        super().__init__(body_for(path, error), status_code=error.status)
        self.raw_headers.extend(error.headers)
