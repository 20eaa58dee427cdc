"""Responses beyond starlette's: JSON by msgspec, errors, and streams written straight to the ASGI server."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ekiden.api.errors import ApiError, body_for

Handler = Callable[[Request], Awaitable[Response]]
"""Answers a request, or raises :class:`ApiError`, or :class:`ClientDisconnect` when nobody is left to answer."""


class DirectResponse(Response):
    """A response whose ``run`` writes to the ASGI server itself, without a framework layer for each chunk.

    An :class:`ApiError` raised before the first byte becomes an ordinary error response.
    """

    def __init__(self, run: Callable[[Send], Awaitable[None]]) -> None:
        super().__init__()
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._run(send)
        except ClientDisconnect:
            return  # the generation has ended already


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
