"""The open streams of one event loop: the engine delivers updates after each step, readers take them one by one.

A stream's buffer is bounded: when a reader falls ``HIGH_WATER`` updates behind, its sequence, not the engine, is paused
until the reader is down to ``LOW_WATER``.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from ekiden.engine.interface import EngineDied
from ekiden.engine.loop import Abort, Command, Submit
from ekiden.state.request import Request, RequestUpdate
from ekiden.state.sequence import PauseReason
from ekiden.state.turn import Pause

HIGH_WATER = 256
LOW_WATER = 64


class Stream:
    """The updates of one request; see :class:`ekiden.engine.interface.UpdateIterator`."""

    __slots__ = ("_streams", "buffer", "error", "lagging", "request_id", "waiter")

    def __init__(self, request_id: str, streams: "Streams") -> None:
        self.request_id = request_id
        self.buffer: deque[RequestUpdate] = deque()
        self.waiter: asyncio.Future[None] | None = None
        self.error: str | None = None
        self.lagging = False
        self._streams = streams

    def __aiter__(self) -> AsyncIterator[RequestUpdate]:
        return self

    async def __anext__(self) -> RequestUpdate:
        while not self.buffer:
            if self.error is not None:
                raise EngineDied(self.error)
            if not self._streams.is_open(self):
                raise StopAsyncIteration
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        update = self.buffer.popleft()
        if update.terminal:
            self.error = None  # the request has ended; that the engine ended after it is no failure
            self._streams.forget(self)
        elif self.lagging and len(self.buffer) <= LOW_WATER:
            self._streams.caught_up(self)
        return update

    async def aclose(self) -> None:
        self._streams.close(self)

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class Streams:
    """All methods run on the event loop's thread."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        self._send = send
        self._open: dict[str, Stream] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request: Request) -> Stream:
        """Submit the request now; closing the stream before its terminal update aborts it."""
        if request.request_id in self._open:
            raise ValueError(f"a request with the id {request.request_id!r} is in flight already")
        stream = self._open[request.request_id] = Stream(request.request_id, self)
        self._send(Submit(request))
        return stream

    def is_open(self, stream: Stream) -> bool:
        return self._open.get(stream.request_id) is stream

    def forget(self, stream: Stream) -> None:
        self._open.pop(stream.request_id, None)

    def close(self, stream: Stream) -> None:
        """Abort the request if it is still in flight, and end its reader's iteration."""
        if self.is_open(stream):
            self.forget(stream)
            self._send(Abort(stream.request_id))
            stream.wake()

    def caught_up(self, stream: Stream) -> None:
        """The stream's reader had fallen behind and has room again: let its sequence go on."""
        stream.lagging = False
        if self.is_open(stream):
            self._send(Pause(stream.request_id, PauseReason.SLOW_READER, False))

    def deliver(self, updates: list[RequestUpdate]) -> None:
        """Put updates into their streams' buffers; updates of streams that were closed meanwhile are dropped."""
        for update in updates:
            stream = self._open.get(update.request_id)
            if stream is not None:
                stream.buffer.append(update)
                stream.wake()
                if len(stream.buffer) >= HIGH_WATER and not stream.lagging and not update.terminal:
                    stream.lagging = True
                    self._send(Pause(stream.request_id, PauseReason.SLOW_READER, True))

    def fail_all(self, message: str) -> None:
        """The engine died: every open stream raises :class:`EngineDied` once its reader has caught up."""
        for stream in self._open.values():
            stream.error = message
            stream.wake()
        self._open.clear()
