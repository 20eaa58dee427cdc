"""An engine on a thread of this process: for libraries, tests and the terminal chat. The server runs
:class:`ekiden.engine.process.EngineClient` instead, so that its HTTP work never holds up a step."""

import asyncio
import threading

from ekiden.config import Config
from ekiden.engine.build import EngineParts, build_core
from ekiden.engine.control_calls import ControlCalls
from ekiden.engine.engine_core import StepObserver
from ekiden.engine.interface import EngineDied, EngineStats, Health, ModelCard
from ekiden.engine.loop import Abort, EngineLoop, Pause, Stop
from ekiden.engine.recording import recorded_core
from ekiden.engine.streams import Stream, Streams
from ekiden.ledger.store import LedgerWriter
from ekiden.state.controls import ControlChange, ControlState
from ekiden.state.request import Request, RequestUpdate
from ekiden.state.sequence import PauseReason


class AsyncEngine:
    """Use as ``async with AsyncEngine(parts, config) as engine``."""

    def __init__(
        self, parts: EngineParts, config: Config, *, observer: StepObserver | None = None, record: bool = False
    ) -> None:
        self._card = parts.card
        self.ledger: LedgerWriter | None = None
        """Where the run is recorded, if it is to be."""
        if record:
            self._core, self.ledger = recorded_core(parts, config, observer=observer)
        else:
            self._core = build_core(parts, config, observer=observer)
        self._loop = EngineLoop(self._core, self._deliver_from_engine, parts.grammars, answer=self._answer_from_engine)
        self._streams = Streams(self._loop.inbox.put)
        self._control_calls = ControlCalls(self._loop.inbox.put, self._core.controls.now)
        self._stats = self._core.stats()
        self._thread: threading.Thread | None = None
        self._error: str | None = None
        self._events: asyncio.AbstractEventLoop | None = None

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
            self._loop.inbox.put(Stop(drain_seconds))
            await asyncio.to_thread(self._thread.join)
            self._thread = None
        if self.ledger is not None:
            await asyncio.to_thread(self.ledger.close)

    @property
    def card(self) -> ModelCard:
        return self._card

    @property
    def health(self) -> Health:
        if self._error is not None:
            return Health.DEAD
        return Health.STOPPED if self._thread is None else Health.OK

    def stats(self) -> EngineStats:
        return self._stats

    def generate(self, request: Request) -> Stream:
        self._check_running()
        return self._streams.open(request)

    async def abort(self, request_id: str) -> None:
        self._loop.inbox.put(Abort(request_id))

    async def pause(self, request_id: str, by: str | None = None) -> None:
        self._loop.inbox.put(Pause(request_id, PauseReason.OPERATOR, True, by))

    async def resume(self, request_id: str, by: str | None = None) -> None:
        self._loop.inbox.put(Pause(request_id, PauseReason.OPERATOR, False, by))

    def controls(self) -> ControlState:
        return self._control_calls.state

    async def set_controls(self, change: ControlChange) -> ControlState:
        self._check_running()
        return await self._control_calls.set(change)

    def _check_running(self) -> None:
        if self._error is not None or self._thread is None:
            raise EngineDied(self._error or "the engine is not running")

    def _run(self) -> None:
        error = None
        try:
            self._loop.run()
        except BaseException as caught:
            error = f"the engine failed: {type(caught).__name__}: {caught}"
            raise
        finally:
            if self._events is not None and not self._events.is_closed():
                self._events.call_soon_threadsafe(self._ended, error)

    def _ended(self, error: str | None) -> None:
        self._error = error
        self._streams.fail_all(error or "the engine was stopped")
        self._control_calls.fail_all(error or "the engine was stopped")

    def _answer_from_engine(self, number: int, answer: ControlState | str) -> None:
        if self._events is not None and not self._events.is_closed():
            self._events.call_soon_threadsafe(self._control_calls.answered, number, answer)

    def _deliver_from_engine(self, updates: list[RequestUpdate], stats: EngineStats) -> None:
        self._stats = stats
        if updates and self._events is not None and not self._events.is_closed():
            self._events.call_soon_threadsafe(self._streams.deliver, updates)
