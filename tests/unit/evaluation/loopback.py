"""A scripted HTTP/1.1 server on loopback, whose every connection is closed before its test ends."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

Answer = Callable[[str, dict[str, Any], asyncio.StreamWriter], Awaitable[None]]
"""``answer(path, body, writer)`` writes one reply; the body of a GET is empty."""


class LoopbackServer:
    """Counts its connections and the most requests it had at once, and keeps the bodies it received."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._writers: list[asyncio.StreamWriter] = []
        self._listener: asyncio.Server | None = None
        self._open = 0
        self.most_open = 0
        self.bodies: list[dict[str, Any]] = []

    @property
    def connections(self) -> int:
        return len(self._writers)

    async def start(self) -> str:
        """Listen on a free port; returns the address."""
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._listener is not None
        self._listener.close()
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await self._listener.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, path, _ = head.split(" ", 2)
                body: dict[str, Any] = {}
                if method == "POST":
                    length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
                    body = json.loads(await reader.readexactly(length))
                    self.bodies.append(body)
                self._open += 1
                self.most_open = max(self.most_open, self._open)
                await self._answer(path, body, writer)
                self._open -= 1
