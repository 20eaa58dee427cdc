"""The stream of frames for browsers that watch (``GET /dashboard/data/stream``).

It begins with what the browser lacks: all, or what came after the event that the header ``Last-Event-ID`` names. A
browser that reads slowly is waited for, and then gets the newest frame. The stream ends after some minutes, so that the
key is looked at again: the browser comes back by itself, with the id of its last event.
"""

import asyncio
import contextlib
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from ekiden.api.asgi import DirectResponse
from ekiden.api.errors import ApiError, retry_after
from ekiden.api.flight import Flight
from ekiden.api.page_data import PageData, asked
from ekiden.api.sse import SseWriter
from ekiden.dashboard.frames import Frames

MOST_VIEWERS: Final = 100
STREAM_SECONDS: Final = 600.0
_WAIT_SECONDS: Final = 0.5
"""How long a stream sleeps before it looks whether the server is to end."""
_SILENCE_SECONDS: Final = 5.0
_OPENING: Final = b"retry: 1000\n: frames of the engine\n\n"
_COMMENT: Final = b": still here\n\n"


class PageStream:
    def __init__(self, frames: Frames, flight: Flight, data: PageData) -> None:
        self.frames, self._flight, self._data = frames, flight, data
        self.viewers = 0

    async def stream(self, request: Request) -> Response:
        """Frames of the run that is being written; of another one (``?run=``) its last frame alone."""
        run = asked(request, "run")
        if run is not None and run != self._data.current:
            last = await self._data.last_frame(run)
            return Response(last, media_type="text/event-stream", headers={"cache-control": "no-store"})
        if self.viewers >= MOST_VIEWERS:
            message = f"{self.viewers} pages are open already; close some."
            raise ApiError(503, message, code="too_many_pages", headers=retry_after(10.0))
        return DirectResponse(lambda send: self._send(request, send))

    async def _send(self, request: Request, send: Send) -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(woken.set)

        writer = SseWriter(send, b"")
        self.viewers += 1
        viewer = self.frames.join(wake, request.headers.get("last-event-id"))
        try:
            async with self._flight.watch(request.receive):
                await writer.write(_OPENING)
                began = loop.time()
                while loop.time() - began < STREAM_SECONDS and not self._flight.draining:
                    woken.clear()
                    event = self.frames.next_for(viewer)
                    if event is not None:
                        await writer.write(event.data)
                        continue
                    if loop.time() - writer.written_at > _SILENCE_SECONDS:
                        await writer.write(_COMMENT)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_WAIT_SECONDS):
                            await woken.wait()
                await writer.close(b"")
        except ApiError:
            await writer.close(b"")  # the server ends
        finally:
            self.frames.leave(viewer)
            self.viewers -= 1
