"""The calls in flight, whether new ones are accepted, and how an answer is cut short.

An answer is made in the task that the ASGI server made. A second task waits for the client's disconnect, once per
request and never per token; when it comes, a timeout of the first expires, which cancels it at the point where it
waits, closes the engine's iterators and so aborts the generation.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from ekiden.api.errors import ApiError, closed_to_newcomers, shutting_down
from ekiden.engine.interface import Engine


class Exchange:
    """One call's answers while they are made. ``limit`` surrounds that work; cutting it short lets it expire."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self.cause: ApiError | ClientDisconnect | None = None

    def cut(self, cause: ApiError | ClientDisconnect) -> None:
        """End the work by raising ``cause`` where it waits; only the first cause counts."""
        if self.cause is None:
            self.cause = cause
            self._limit.reschedule(0.0)


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
        """Raise :class:`ClientDisconnect` inside when the client disconnects; :meth:`cut_all` ends the work too."""
        limit = asyncio.timeout(None)
        exchange = Exchange(limit)

        async def await_disconnect() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            exchange.cut(ClientDisconnect())

        try:
            async with limit:
                watcher = asyncio.create_task(await_disconnect())
                self.exchanges.add(exchange)
                try:
                    yield
                finally:
                    self.exchanges.discard(exchange)
                    watcher.cancel()
        except TimeoutError:
            if exchange.cause is None:
                raise
            raise exchange.cause from None

    def cut_all(self) -> int:
        """End every answer in flight with an error for its client; returns how many there were."""
        exchanges = list(self.exchanges)
        for exchange in exchanges:
            exchange.cut(shutting_down())
        return len(exchanges)
