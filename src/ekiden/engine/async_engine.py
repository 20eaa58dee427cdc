"""An engine on a thread of this process: for libraries and tests. The server runs
:class:`ekiden.engine.process.EngineClient` instead, so that its HTTP work never holds up a step."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

from ekiden.engine.interface import EngineDied, Health
from ekiden.engine.loop import MAX_QUEUED_NOTES, Command, EngineLoop, Stop
from ekiden.engine.parts import BuiltEngine
from ekiden.engine.streaming import StreamingEngine
from ekiden.state.request import RefusedCall


class AsyncEngine(StreamingEngine):
    """Use as ``async with AsyncEngine(built) as engine``. The runner stays open; its owner closes it."""

    def __init__(self, built: BuiltEngine) -> None:
        super().__init__(built.core.controls.now)
        self._built = built
        self.card = built.parts.card
        self._loop = EngineLoop(
            built.core,
            partial(self._post, self._take_step),
            built.parts.grammars,
            answer=partial(self._post, self._take_answer),
        )
        self.ledger_path = built.ledger_path
        self._stats = built.core.stats()
        self._thread: threading.Thread | None = None
        self._error: str | None = None
        self._events: asyncio.AbstractEventLoop

    async def __aenter__(self) -> "AsyncEngine":
        self._events = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="ekiden-engine", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Refuse newcomers, let what runs finish for ``drain_seconds``, abort the rest. Harmless when repeated."""
        if self._thread is not None:
            self._send(Stop(drain_seconds))
            await asyncio.to_thread(self._thread.join)
            self._thread = None
        await asyncio.to_thread(self._built.close_ledger)

    @property
    def health(self) -> Health:
        if self._error is not None:
            return Health.DEAD
        return Health.STOPPED if self._thread is None else Health.OK

    def _check_running(self) -> None:
        if self._error is not None or self._thread is None:
            raise EngineDied(self._error or "the engine is not running")

    def note_refusal(self, refused: RefusedCall) -> bool:
        may = self.health is Health.OK and self._loop.inbox.qsize() < MAX_QUEUED_NOTES
        return may and super().note_refusal(refused)

    def restart(self, why: str) -> None:
        """A thread cannot be ended from outside."""

    def _send(self, command: Command) -> None:
        self._loop.send(command)

    def _run(self) -> None:
        error = None
        try:
            self._loop.run()
        except BaseException as caught:
            error = f"the engine failed: {type(caught).__name__}: {caught}"
            raise
        finally:
            self._post(self._ended, error)

    def _ended(self, error: str | None) -> None:
        self._error = error
        self._fail_all(error or "the engine was stopped")

    def _post(self, take: Callable[..., None], *told: object) -> None:
        """Call a method on the event loop, from the engine's thread."""
        if not self._events.is_closed():
            self._events.call_soon_threadsafe(take, *told)
