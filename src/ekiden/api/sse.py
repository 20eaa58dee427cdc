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
    """The events of one response; the protocol's ``end`` comes after the last one. ``written_at`` is the loop's time of
    the last write, or of the beginning."""

    __slots__ = ("_end", "_now", "_send", "_starting", "started", "written_at")

    def __init__(self, send: Send, end: bytes) -> None:
        self._send = send
        self._end = end
        self._starting = asyncio.Lock()
        self.started = False
        self._now = asyncio.get_running_loop().time
        self.written_at = self._now()

    async def write(self, data: bytes, *, more: bool = True) -> None:
        if not self.started:
            await self._start()
        self.written_at = self._now()
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def close(self, data: bytes) -> None:
        """Send the last events and end the response."""
        await self.write(data + self._end, more=False)

    async def break_silence(self, seconds: float, keep_alive: bytes) -> None:
        """Send ``keep_alive`` whenever nothing was written for so long, so that nobody takes the connection for dead.

        It never ends by itself.
        """
        while True:
            silent = self._now() - self.written_at
            if silent < seconds:
                await asyncio.sleep(seconds - silent)
            else:
                await self.write(keep_alive)

    async def _start(self) -> None:
        async with self._starting:
            if not self.started:
                await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                self.started = True


def named_event(kind: str, fields: dict[str, Any]) -> bytes:
    """An event with its type beside its data, as the newer protocols have them."""
    return b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind, **fields}) + b"\n\n"
