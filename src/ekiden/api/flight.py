"""The calls in flight, whether new ones are accepted, and how an answer is cut short.

An answer is made in the task that the ASGI server made. A second task waits for the client's disconnect, once per
request and never per token; when it comes, the first is cancelled at the point where it waits, which closes the
engine's iterators and so aborts the generation. :class:`asyncio.timeout` works the same way.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from starlette.types import Receive

from ekiden.api.errors import ApiError, ClientGone, closed_to_newcomers, shutting_down
from ekiden.engine.interface import Engine


class Exchange:
    """``async with Exchange(receive): ...`` raises :class:`ClientGone` inside when the client disconnects."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._cause: ApiError | ClientGone | None = None
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._cancelling = 0

    def cut(self, cause: ApiError | ClientGone) -> None:
        """End the work by raising ``cause`` where it waits; only the first cause counts."""
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


class Flight:
    """``draining``: the server is asked to stop. ``closing``: an operator's wish that the engine has yet to carry out.

    ``calls`` has the engine's ids of the answers of each call that is being answered.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.draining = False
        self.closing: bool | None = None
        self.calls: dict[str, set[str]] = {}
        self.exchanges: set[Exchange] = set()

    @property
    def closed(self) -> bool:
        """Whether an operator keeps new requests out."""
        return self._engine.controls().controls.draining if self.closing is None else self.closing

    def check_open(self) -> None:
        """Raise :class:`ApiError` 503 while no new work is taken."""
        if self.draining:
            raise shutting_down()
        if self.closed:
            raise closed_to_newcomers()

    def begin(self, call_id: str, request_id: str) -> None:
        self.calls.setdefault(call_id, set()).add(request_id)

    def end(self, call_id: str, request_id: str) -> None:
        answers = self.calls[call_id]
        answers.discard(request_id)
        if not answers:
            del self.calls[call_id]

    def answers_of(self, wanted: str) -> list[str]:
        """The engine's ids of a call's answers in flight, or of the one answer with that id; none when unknown."""
        if wanted in self.calls:
            return sorted(self.calls[wanted])
        return [wanted] if wanted in self.calls.get(wanted.rpartition("-")[0], ()) else []

    @asynccontextmanager
    async def watch(self, receive: Receive) -> AsyncIterator[None]:
        """Watch for the client's disconnect while its answers are generated; :meth:`cut_all` can end it."""
        watched = Exchange(receive)
        self.exchanges.add(watched)
        try:
            async with watched:
                yield
        finally:
            self.exchanges.discard(watched)

    def cut_all(self) -> int:
        """End every answer in flight with an error for its client; returns how many there were."""
        exchanges = list(self.exchanges)
        for exchange in exchanges:
            exchange.cut(shutting_down())
        return len(exchanges)
