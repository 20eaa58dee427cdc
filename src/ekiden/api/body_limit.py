"""Reads a request's body within limits of size and time.

Bytes are counted as they arrive, so a chunked body without ``Content-Length`` is cut off at the same place. Only
``application/json`` is taken: a web page may post other types across origins without asking the server first.
"""

import asyncio
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive, Scope

from ekiden.api.errors import ApiError, shown

BODY_SECONDS: Final = 30.0
"""How long a body may take to arrive."""


async def read_json_body(scope: Scope, receive: Receive, *, max_bytes: int, seconds: float = BODY_SECONDS) -> bytes:
    """The whole body. Raises :class:`ApiError` 413, 415 or 408, and :class:`ClientDisconnect`."""
    headers = Headers(scope=scope)
    content_type = headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(
            415,
            f"The content type is {shown(content_type)}; send the header 'Content-Type: application/json'.",
            param="content-type",
            code="unsupported_media_type",
        )
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in Request(scope, receive).stream():
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                chunks.append(chunk)
        return b"".join(chunks)
    except TimeoutError:
        raise ApiError(
            408,
            f"The body did not arrive within {seconds:g} seconds.",
            code="body_timeout",
            headers=((b"connection", b"close"),),
        ) from None


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"The body is larger than {max_bytes} bytes; the limit is max_body_mib ({max_bytes / 2**20:g} MiB).",
        code="body_too_large",
    )
