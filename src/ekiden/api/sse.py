"""Server-sent events, written straight to the ASGI server: one ``send`` a token, no layer between.

The parts of a chunk that never change are encoded once for each stream; a token costs its text's encoding and two
joins. ``data: [DONE]`` is last, after an error too. The status line waits for the first event, so that what is refused
before it is an ordinary error response.
"""

import asyncio
from typing import Any, Final, Protocol

import msgspec
from starlette.types import Send

from ekiden.api.errors import ApiError

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

encode: Final = msgspec.json.Encoder().encode


class Ending(Protocol):
    """How a protocol ends a stream. ``end`` comes after the last event."""

    end: bytes

    def error(self, error: ApiError) -> bytes:
        """The event for an error after the first byte."""
        ...


class SseWriter:
    """The events of one response. ``wrote`` is set by each write, so that silence can be noticed."""

    __slots__ = ("_ending", "_send", "_starting", "started", "wrote")

    def __init__(self, send: Send, ending: Ending) -> None:
        self._send = send
        self._ending = ending
        self._starting = asyncio.Lock()
        self.started = False
        self.wrote = False

    async def write(self, data: bytes) -> None:
        if not self.started:
            await self._start()
        self.wrote = True
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def close(self, data: bytes = b"") -> None:
        """Send the last events and the protocol's ``end``, and end the response."""
        if not self.started:
            await self._start()
        await self._send({"type": "http.response.body", "body": data + self._ending.end, "more_body": False})

    async def fail(self, error: ApiError) -> None:
        """Send an error as the last event of the stream."""
        await self.close(self._ending.error(error))

    async def _start(self) -> None:
        async with self._starting:
            if not self.started:
                await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                self.started = True


class ChunkFrame:
    """The unchanging parts of a stream's chunks: everything around ``choices`` and ``usage``."""

    def __init__(self, head: dict[str, Any], *, include_usage: bool) -> None:
        # Without its closing brace, so that "choices" can be appended.
        self.prefix = b"data: " + encode(head)[:-1] + b',"choices":['
        self.suffix = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def choice(self, choice: dict[str, Any]) -> bytes:
        return self.prefix + encode(choice) + self.suffix

    def usage(self, usage: dict[str, Any]) -> bytes:
        return self.prefix + b'],"usage":' + encode(usage) + b"}\n\n"


def named_event(kind: str, fields: dict[str, Any]) -> bytes:
    """An event with its type beside its data, as the newer protocols have them."""
    return b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind, **fields}) + b"\n\n"
