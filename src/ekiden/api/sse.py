"""Server-sent events, written straight to the ASGI server: one ``send`` a token, no layer between.

The parts of a chunk that never change are encoded once for each stream; a token costs its text's encoding and two
joins. ``data: [DONE]`` is last, after an error too. The status line waits for the first event, so that what is refused
before it is an ordinary error response.
"""

import asyncio
from typing import Any, Final

import msgspec
from starlette.types import Send

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

encode: Final = msgspec.json.Encoder().encode


class SseWriter:
    """The events of one response; the protocol's ``end`` comes after the last one. ``wrote`` is set by each write, so
    that silence can be noticed."""

    __slots__ = ("_end", "_send", "_starting", "started", "wrote")

    def __init__(self, send: Send, end: bytes) -> None:
        self._send = send
        self._end = end
        self._starting = asyncio.Lock()
        self.started = False
        self.wrote = False

    async def write(self, data: bytes, *, more: bool = True) -> None:
        if not self.started:
            await self._start()
        self.wrote = True
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def close(self, data: bytes) -> None:
        """Send the last events and end the response."""
        await self.write(data + self._end, more=False)

    async def _start(self) -> None:
        async with self._starting:
            if not self.started:
                await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                self.started = True


def named_event(kind: str, fields: dict[str, Any]) -> bytes:
    """An event with its type beside its data, as the newer protocols have them."""
    return b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind, **fields}) + b"\n\n"
