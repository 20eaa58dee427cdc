"""One HTTP request while it is being answered: notices when the client leaves, and can be cut short by the server.

The work runs in the task that the ASGI server made. A second task waits for the client's disconnect, once per request
and never per token; when it comes, the first is cancelled at the point where it waits, which closes the engine's
iterators and so aborts the generation. :class:`asyncio.timeout` works the same way.
"""

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Receive

from ekiden.api.errors import ApiError, ClientGone


class Exchange:
    """``async with Exchange(receive): ...`` raises :class:`ClientGone` inside when the client disconnects."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._cause: ApiError | ClientGone | None = None
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._cancelling = 0

    def cut(self, cause: ApiError | ClientGone) -> None:
        """End the work with ``cause`` at the point where it waits; only the first call counts."""
        if self._cause is None and self._task is not None:
            self._cause = cause
            self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.cut(ClientGone())

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, watcher = self._task, self._watcher
        assert task is not None
        assert watcher is not None
        self._task = None
        watcher.cancel()
        if self._cause is None or task.uncancel() > self._cancelling:
            return
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            raise self._cause from error
