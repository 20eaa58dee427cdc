"""The updates of one request, from the engine, which puts them in after each step, to a reader that takes them one by
one.

A stream's buffer is bounded: when a reader falls ``HIGH_WATER`` updates behind, its sequence, not the engine, is paused
until the reader is down to ``LOW_WATER``.

A stream keeps its request and the tokens that it was given, so that another engine can go on where one has ended.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from ekiden.engine.interface import EngineDied
from ekiden.engine.loop import Abort, Command
from ekiden.engine.recovery import InFlight
from ekiden.state.request import Request, RequestUpdate
from ekiden.state.sequence import PauseReason
from ekiden.state.turn import Pause

HIGH_WATER = 256
LOW_WATER = 64


class Stream:
    """Implements :class:`ekiden.engine.interface.UpdateIterator`. All methods run on the event loop's thread.

    ``streams`` holds the open streams of the engine, by their requests' ids; ``send`` puts a command into its inbox.
    """

    __slots__ = ("_buffer", "_error", "_lagging", "_request_id", "_send", "_streams", "_waiter", "flight")

    def __init__(self, request: Request, streams: "dict[str, Stream]", send: Callable[[Command], None]) -> None:
        self.flight = InFlight(request)
        self._request_id = request.request_id
        self._streams = streams
        self._send = send
        self._buffer: deque[RequestUpdate] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: EngineDied | None = None
        self._lagging = False

    def __aiter__(self) -> AsyncIterator[RequestUpdate]:
        return self

    async def __anext__(self) -> RequestUpdate:
        while not self._buffer:
            if self._error is not None:
                raise self._error
            if not self._open:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        update = self._buffer.popleft()
        if update.terminal:
            self._error = None  # the request has ended; that the engine ended after it is no failure
            self._streams.pop(self._request_id, None)
        elif self._lagging and len(self._buffer) <= LOW_WATER:
            self._lagging = False
            if self._open:
                self.pause(PauseReason.SLOW_READER, False)
        return update

    async def aclose(self) -> None:
        """Abort the request if it is still in flight, and end its reader's iteration."""
        if self._open:
            self._send(Abort(self._request_id))
            self._streams.pop(self._request_id, None)
            self._wake()

    def put(self, update: RequestUpdate) -> None:
        self._buffer.append(update)
        self._wake()
        flight = self.flight
        if update.token_ids:
            if flight.first_token_time is None:
                flight.first_token_time = time.monotonic()
            flight.token_ids += update.token_ids
        flight.ended = update.terminal
        if len(self._buffer) >= HIGH_WATER and not self._lagging and not update.terminal:
            self._lagging = True
            self.pause(PauseReason.SLOW_READER, True)

    def pause(self, reason: PauseReason, paused: bool, by: str | None = None) -> None:
        """Have the request paused for a reason, or (``paused`` False) that reason withdrawn; the next engine is told
        too."""
        if paused:
            self.flight.pauses[reason] = by
        else:
            self.flight.pauses.pop(reason, None)
        self._send(Pause(self._request_id, reason, paused, by))

    def fail(self, error: EngineDied) -> None:
        """No engine goes on with the request: raise the error once the reader has caught up."""
        self._error = error
        self._wake()

    @property
    def _open(self) -> bool:
        return self._streams.get(self._request_id) is self

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
