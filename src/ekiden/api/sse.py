"""Server-sent events, written straight to the ASGI server: one ``send`` a token, no layer between.

The parts of a chunk that never change are encoded once for each stream; a token costs its text's encoding and two
joins. ``data: [DONE]`` is last, after an error too. The status line waits for the first event, so that what is refused
before it is an ordinary error response.
"""

import asyncio
from typing import Any, ClassVar, Final

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


class SseWriter:
    """The events of one response. ``wrote`` is set by each write, for whoever watches for silence.

    Here an error is an object as it would be a response's body, and ``[DONE]`` comes last; other protocols override
    ``end`` and :meth:`error_event`.
    """

    __slots__ = ("_send", "_starting", "started", "wrote")

    end: ClassVar[bytes] = DONE

    def __init__(self, send: Send) -> None:
        self._send = send
        self._starting = asyncio.Lock()
        self.started = False
        self.wrote = False

    async def write(self, data: bytes) -> None:
        if not self.started:
            await self._start()
        self.wrote = True
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def close(self, data: bytes = b"") -> None:
        """The last events, what the protocol puts last, and the end of the response."""
        if not self.started:
            await self._start()
        await self._send({"type": "http.response.body", "body": data + self.end, "more_body": False})

    async def fail(self, error: ApiError) -> None:
        """An error after the first byte is an event of the stream, and its last."""
        await self.close(self.error_event(error))

    def error_event(self, error: ApiError) -> bytes:
        return b"data: " + error.body() + b"\n\n"

    async def _start(self) -> None:
        async with self._starting:
            if not self.started:
                await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                self.started = True


class ChunkFrame:
    """The unchanging parts of a stream's chunks: everything around ``choices`` and ``usage``."""

    def __init__(self, head: dict[str, Any], *, include_usage: bool) -> None:
        # The opening brace is dropped, so that "choices" comes last, where its end is known.
        self.prefix = b"data: " + encode(head)[:-1] + b',"choices":['
        self.suffix = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def choice(self, choice: dict[str, Any]) -> bytes:
        return self.prefix + encode(choice) + self.suffix

    def usage(self, usage: dict[str, Any]) -> bytes:
        return self.prefix + b'],"usage":' + encode(usage) + b"}\n\n"
