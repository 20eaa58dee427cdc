"""The engine in a process of its own, and the supervisor that keeps one alive.

Parent and child talk in msgpack messages over one pipe, each end with a reader and a writer thread, so that neither a
stopped child can block the parent's event loop nor a busy parent a step. The child ends when the pipe does.

The supervisor restarts an engine that died, with a growing pause, and one that is wedged: no message for
``wedge_timeout`` seconds while requests are in flight. Requests in flight then end with :class:`EngineDied`.
``health`` is STALLED from ``stall_timeout`` seconds on, and OK again as soon as tokens move.
"""

import asyncio
import contextlib
import gc
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from ekiden.config import Config, controls_of
from ekiden.engine.build import EngineParts, build_core
from ekiden.engine.control_calls import ControlCalls
from ekiden.engine.engine_core import EngineCore
from ekiden.engine.interface import EngineDied, EngineStats, Health, ModelCard
from ekiden.engine.loop import Abort, Command, EngineLoop, Pause, SetControls, Stop
from ekiden.engine.recording import LedgerError, recorded_core
from ekiden.engine.spawn import Spawned, spawn_engine
from ekiden.engine.streams import Stream, Streams
from ekiden.ledger.store import LedgerWriter
from ekiden.models.errors import ModelError
from ekiden.state.controls import ControlChange, ControlState
from ekiden.state.request import Request, RequestUpdate
from ekiden.state.sequence import PauseReason

MakeParts = Callable[[Config], EngineParts]
"""Loads the model inside the engine's process; must be importable by name there."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """``ledger``: the file that the run is recorded to, if it is."""

    card: ModelCard
    ledger: str | None = None


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot start, or has ended; trying again makes sense unless ``permanent``."""

    message: str
    permanent: bool


class Stepped(msgspec.Struct, frozen=True, tag=True):
    updates: list[RequestUpdate]
    stats: EngineStats


class Answered(msgspec.Struct, frozen=True, tag=True):
    """To a :class:`SetControls` of the same number: the controls in force, or why the change was refused."""

    number: int
    answer: ControlState | str


Report = Ready | Failed | Stepped | Answered


# --- the child


def engine_main(connection: Connection, make_parts: MakeParts, config: Config) -> None:
    """The child process: load the model, then run the loop until told to stop or the parent is gone."""
    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    writer = threading.Thread(target=_write_all, args=(connection, outbox), name="ekiden-writer", daemon=True)
    writer.start()
    encode = msgspec.msgpack.Encoder().encode
    ledger: LedgerWriter | None = None
    try:
        parts = make_parts(config)
        core, ledger = _core(parts, config)
        loop = EngineLoop(
            core,
            lambda updates, stats: outbox.put(encode(Stepped(updates, stats))),
            parts.grammars,
            answer=lambda number, answer: outbox.put(encode(Answered(number, answer))),
        )
        reader = threading.Thread(target=_read_commands, args=(connection, loop), name="ekiden-reader", daemon=True)
        reader.start()
        gc.collect()
        gc.freeze()  # what is loaded stays: a full collection walking over it would hold up a step
        outbox.put(encode(Ready(parts.card, None if ledger is None else str(ledger.path))))
        loop.run()
    except (ModelError, LedgerError) as error:
        outbox.put(encode(Failed(str(error), permanent=True)))
    except Exception as error:
        outbox.put(encode(Failed(f"{type(error).__name__}: {error}", permanent=False)))
        raise
    finally:
        if ledger is not None:
            ledger.close()
        outbox.put(None)
        writer.join(timeout=5.0)


def _core(parts: EngineParts, config: Config) -> tuple[EngineCore, LedgerWriter | None]:
    return recorded_core(parts, config) if config.ledger.ledger else (build_core(parts, config), None)


def _read_commands(connection: Connection, loop: EngineLoop) -> None:
    decoder = msgspec.msgpack.Decoder(Command)
    try:
        while True:
            loop.inbox.put(decoder.decode(connection.recv_bytes()))
    except (EOFError, OSError):
        loop.inbox.put(Stop())  # the parent is gone


def _write_all(connection: Connection, outbox: "queue.SimpleQueue[bytes | None]") -> None:
    try:
        while (message := outbox.get()) is not None:
            connection.send_bytes(message)
    except OSError:
        return  # the other end is gone; its reader notices


# --- the parent


class EngineClient:
    """Implements :class:`ekiden.engine.interface.Engine` over a supervised child process.

    The first child is ``spawned`` where that is given, and begins to load at once; else :meth:`start` spawns it.
    """

    def __init__(
        self,
        make_parts: MakeParts,
        config: Config,
        *,
        spawned: Spawned | None = None,
        stall_timeout: float = 10.0,
        wedge_timeout: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_parts = make_parts
        self._config = config
        self._stall_timeout = stall_timeout
        self._wedge_timeout = wedge_timeout
        self._clock = clock
        self._streams = Streams(self._send)
        self._control_calls = ControlCalls(self._send, controls_of(config))
        self._encode = msgspec.msgpack.Encoder().encode
        self._spawned = None if spawned is None else self._begin(spawned)
        self._child: _Child | None = None
        self._card: ModelCard | None = None
        self.ledger_path: Path | None = None
        """Where the newest run is recorded; None when none is."""
        self._stats = EngineStats()
        self._last_report = 0.0
        self._supervisor: asyncio.Task[None] | None = None
        self._failure: str | None = None
        self._stopping = False
        self._stopped = asyncio.Event()
        self.restarts = 0

    async def start(self) -> ModelCard:
        """Start the child and wait until it can answer. Raises :class:`ModelError` or :class:`EngineDied`."""
        first: asyncio.Future[ModelCard] = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.create_task(self._supervise(first), name="ekiden-supervisor")
        return await first

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Let what runs finish for ``drain_seconds``, abort the rest, end the child. Harmless when repeated."""
        self._stopping = True
        if self._child is not None:
            self._send(Stop(drain_seconds))
            child = self._child
            try:
                await asyncio.wait_for(child.gone.wait(), timeout=drain_seconds + 5.0)
            except TimeoutError:
                child.process.kill()
        if self._supervisor is not None:
            self._stopped.set()
            await self._supervisor
            self._supervisor = None

    @property
    def card(self) -> ModelCard:
        if self._card is None:
            raise EngineDied("the engine has not started yet")
        return self._card

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._child.process.pid if self._child is not None else None

    @property
    def health(self) -> Health:
        if self._stopping:
            return Health.STOPPED
        if self._child is None or not self._child.ready:
            return Health.STARTING if self._card is None else Health.DEAD
        if self._silent_for() > self._stall_timeout:
            return Health.STALLED
        return Health.OK

    def stats(self) -> EngineStats:
        return self._stats

    def generate(self, request: Request) -> Stream:
        self._check_running()
        if len(self._streams) == 0:
            self._last_report = self._clock()  # an idle engine is silent by right
        return self._streams.open(request)

    async def abort(self, request_id: str) -> None:
        self._send(Abort(request_id))

    async def pause(self, request_id: str, by: str | None = None) -> None:
        self._send(Pause(request_id, PauseReason.OPERATOR, True, by))

    async def resume(self, request_id: str, by: str | None = None) -> None:
        self._send(Pause(request_id, PauseReason.OPERATOR, False, by))

    def controls(self) -> ControlState:
        return self._control_calls.state

    async def set_controls(self, change: ControlChange) -> ControlState:
        self._check_running()
        return await self._control_calls.set(change)

    def _check_running(self) -> None:
        if self._child is None or not self._child.ready or self._stopping:
            raise EngineDied("the engine is not running; try again shortly")

    def _silent_for(self) -> float:
        """Seconds without a sign of life while there is work."""
        return self._clock() - self._last_report if len(self._streams) else 0.0

    def _send(self, command: Command) -> None:
        if self._child is not None:
            self._child.outbox.put(self._encode(command))

    # --- supervision

    async def _supervise(self, first: "asyncio.Future[ModelCard]") -> None:
        pause = 0.5
        while not self._stopping:
            started = self._clock()
            await self._run_child(first)
            if not first.done():
                first.set_exception(EngineDied(str(self._failure)))
            if first.exception() is not None:
                return
            self.restarts += 1
            pause = 0.5 if self._clock() - started > 60.0 else min(pause * 2, 30.0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), timeout=pause)

    async def _run_child(self, first: "asyncio.Future[ModelCard]") -> None:
        """One child from start to end; every stream it leaves open fails."""
        spawned, self._spawned = self._spawned or self._begin(spawn_engine()), None
        child = self._child = _Child(spawned)
        try:
            async for report in child.reports(wedged=lambda: self._silent_for() > self._wedge_timeout):
                self._take(child, report, first)
        finally:
            self._child = None
            await child.end()
            if not child.failed:
                self._failure = f"the engine process ended unexpectedly (exit code {child.process.exitcode})"
            message = "the server is shutting down" if self._stopping else str(self._failure)
            self._streams.fail_all(message)
            self._control_calls.fail_all(message)

    def _begin(self, spawned: Spawned) -> Spawned:
        """Tell a process what to load."""
        with contextlib.suppress(OSError):  # it died already; whoever reads from it will notice
            spawned.connection.send((self._make_parts, self._config))
        return spawned

    def _take(self, child: "_Child", report: Report, first: "asyncio.Future[ModelCard]") -> None:
        self._last_report = self._clock()
        match report:
            case Stepped(updates, stats):
                self._stats = stats
                self._streams.deliver(updates)
            case Answered(number, answer):
                self._control_calls.answered(number, answer)
            case Ready(card, ledger):
                child.ready = True
                self._card = card
                self.ledger_path = None if ledger is None else Path(ledger)
                self._send(SetControls(self._control_calls.state.changes))  # an engine that was restarted is told again
                if not first.done():
                    first.set_result(card)
            case Failed(message, permanent):
                child.failed = True
                self._failure = message
                if not first.done():
                    first.set_exception(ModelError(message) if permanent else EngineDied(message))


class _Child:
    """One engine process with the two threads that serve its pipe."""

    def __init__(self, spawned: Spawned) -> None:
        self._connection, self.process = spawned
        self.ready = False
        self.failed = False
        """Whether it said why it ends."""
        self.outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._events = asyncio.get_running_loop()
        self._incoming: asyncio.Queue[Report | None] = asyncio.Queue()
        self.gone = asyncio.Event()
        threading.Thread(
            target=_write_all, args=(self._connection, self.outbox), name="ekiden-to-engine", daemon=True
        ).start()
        threading.Thread(target=self._read, name="ekiden-from-engine", daemon=True).start()

    def _read(self) -> None:
        decoder = msgspec.msgpack.Decoder(Report)
        try:
            while True:
                self._post(decoder.decode(self._connection.recv_bytes()))
        except (EOFError, OSError):
            self._post(None)

    def _post(self, report: Report | None) -> None:
        try:
            self._events.call_soon_threadsafe(self._incoming.put_nowait, report)
        except RuntimeError:
            return  # the event loop has closed; nobody is left to tell

    async def reports(self, *, wedged: Callable[[], bool]) -> AsyncIterator[Report]:
        """What the child says, until its end of the pipe closes. Kills it when ``wedged()`` says so."""
        while True:
            try:
                report = await asyncio.wait_for(self._incoming.get(), timeout=1.0)
            except TimeoutError:
                if wedged():
                    self.process.kill()
                continue
            if report is None:
                return
            yield report

    async def end(self) -> None:
        """See the process off; it is killed when it does not go by itself."""
        self.outbox.put(None)
        await asyncio.to_thread(self.process.join, 5.0)
        if self.process.is_alive():
            self.process.kill()
            await asyncio.to_thread(self.process.join)
        self._connection.close()
        self.gone.set()
