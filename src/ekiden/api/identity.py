"""The outermost middleware: gives each request an id, puts ids on responses, and answers unhandled exceptions.

``x-ekiden-request-id`` is ours and unique. ``x-request-id`` is the client's: it is echoed and recorded, and never used
as a key.
"""

import asyncio
import logging
import re
import uuid
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ekiden.api.asgi import ErrorResponse
from ekiden.api.errors import internal
from ekiden.state.containment import NOT_OF_ONE_REQUEST

REQUEST_ID: Final = "ekiden.request_id"
"""Key of the request's id in the ASGI scope."""
EXTERNAL_ID: Final = "ekiden.external_id"
"""Key of the client's own id in the ASGI scope; absent when it sent none that can be used."""

TRACEPARENT: Final = "ekiden.traceparent"
"""Key of the client's W3C trace context in the ASGI scope; absent without a valid one."""

RESPONSE_HEADERS: Final = "ekiden.response_headers"
"""Key of a list in the ASGI scope: headers that are added to the response, whoever starts it."""

MAX_ECHO: Final = 256
"""Longest ``x-request-id`` that is echoed, in bytes."""

_TRACEPARENT: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

logger = logging.getLogger(__name__)


def new_id() -> str:
    """A unique id for a request."""
    return uuid.uuid4().hex


class IdentityMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_id()
        scope[REQUEST_ID] = request_id
        extra = [(b"x-ekiden-request-id", request_id.encode())]
        for name, value in scope["headers"]:
            if name == b"x-request-id" and EXTERNAL_ID not in scope and 0 < len(value) <= MAX_ECHO and value.isascii():
                extra.append((b"x-request-id", value))
                scope[EXTERNAL_ID] = value.decode("ascii")
                logger.debug("request %s is the client's %s", request_id, value.decode("ascii"))
            elif name == b"traceparent" and _TRACEPARENT.fullmatch(value):
                scope[TRACEPARENT] = value.decode("ascii")
        scope[RESPONSE_HEADERS] = extra
        started = False

        async def send_with_ids(message: Message) -> None:
            nonlocal started
            if not started and message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        try:
            await self._app(scope, receive, send_with_ids)
        except (asyncio.CancelledError, *NOT_OF_ONE_REQUEST):
            raise
        except BaseException:  # a panic of a library in Rust is no Exception
            # A fault of the server that nothing else handled. The client gets an error in its protocol.
            logger.exception("request %s: %s %s failed", request_id, scope["method"], scope["path"])
            if started:
                raise
            await ErrorResponse(scope["path"], internal(request_id))(scope, receive, send_with_ids)
