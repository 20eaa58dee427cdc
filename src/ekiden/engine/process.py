"""The engine in a process of its own, and the supervisor that keeps one alive.

Parent and child talk in msgpack messages over one pipe, each end with a reader and a writer thread, so that neither a
stopped child can block the parent's event loop nor a busy parent a step. The child ends when the pipe does.

The child reports every step. The parent's reader thread hands a report straight to the streams, on the event loop; the
supervisor only waits for the child's end. It restarts an engine that died, with a growing pause. It also restarts one
that is wedged, which means no report for ``wedge_timeout`` seconds while requests are in flight. Requests in flight
then end with :class:`EngineDied`. ``health`` is STALLED from ``stall_timeout`` seconds on, and OK again as soon as
tokens move.
"""

import asyncio
import contextlib
import gc
import queue
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from ekiden.config import Config, controls_of
from ekiden.engine.interface import EngineDied, EngineStats, Health, ModelCard
from ekiden.engine.loop import MAX_QUEUED_NOTES, Command, EngineLoop, SetControls, Stop
from ekiden.engine.parts import BuiltEngine
from ekiden.engine.spawn import Spawned, loaded, spawn
from ekiden.engine.streaming import StreamingEngine
from ekiden.errors import UserError
from ekiden.models.errors import ModelError
from ekiden.state.controls import ControlChange, ControlState
from ekiden.state.request import RefusedCall, RequestUpdate

STATS_SECONDS = 0.2
"""Seconds between two reports of a busy engine's statistics, which nobody reads as often as steps are taken."""

SHUTTING_DOWN = "the server is shutting down"

MakeEngine = Callable[[Config], BuiltEngine]
"""Loads the model and builds the engine inside the engine's process; must be importable by name there."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """``ledger``: the file that the run is recorded to, if it is."""

    card: ModelCard
    ledger: str | None = None


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot start, or has ended; trying again makes sense unless ``permanent``."""

    message: str
    permanent: bool


class Stepped(msgspec.Struct, frozen=True, tag=True):
    """What a step brought; the statistics are left out of most."""

    updates: list[RequestUpdate]
    stats: EngineStats | None


class Answered(msgspec.Struct, frozen=True, tag=True):
    """Answers the :class:`SetControls` of the same number: the controls in force, or why the change was refused."""

    number: int
    answer: ControlState | str


Report = Ready | Failed | Stepped | Answered


# --- the child


def engine_main(connection: Connection) -> None:
    """The child process: receive what to load, load it, then run the loop until told to stop or the parent is gone."""
    try:
        make_engine, config = connection.recv()
    except (EOFError, OSError):
        return  # the parent ended before it had anything to load
    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    writer = threading.Thread(target=_write_all, args=(connection, outbox), name="ekiden-writer", daemon=True)
    writer.start()
    encode = msgspec.msgpack.Encoder().encode
    built: BuiltEngine | None = None
    try:
        built = make_engine(config)
        loop = EngineLoop(
            built.core,
            lambda updates, stats: outbox.put(encode(Stepped(updates, stats))),
            built.parts.grammars,
            answer=lambda number, answer: outbox.put(encode(Answered(number, answer))),
            stats_seconds=STATS_SECONDS,
        )
        reader = threading.Thread(target=_read_commands, args=(connection, loop), name="ekiden-reader", daemon=True)
        reader.start()
        gc.collect()
        gc.freeze()  # all that is loaded stays, so full collections need not visit it and hold up a step
        outbox.put(encode(Ready(built.parts.card, None if built.ledger is None else str(built.ledger.path))))
        loaded()
        loop.run()
    except UserError as error:
        outbox.put(encode(Failed(str(error), permanent=True)))
    except Exception as error:
        outbox.put(encode(Failed(f"{type(error).__name__}: {error}", permanent=False)))
        raise
    finally:
        if built is not None:
            built.close_ledger()
        outbox.put(None)
        writer.join(timeout=5.0)


def _read_commands(connection: Connection, loop: EngineLoop) -> None:
    decoder = msgspec.msgpack.Decoder(Command)
    try:
        while True:
            loop.send(decoder.decode(connection.recv_bytes()))
    except (EOFError, OSError):
        loop.inbox.put(Stop())  # the parent is gone


def _write_all(connection: Connection, outbox: "queue.SimpleQueue[bytes | None]") -> None:
    try:
        while (message := outbox.get()) is not None:
            connection.send_bytes(message)
    except OSError:
        return  # the other end is gone; the thread that reads the pipe notices


# --- the parent


class EngineClient(StreamingEngine):
    """Implements :class:`ekiden.engine.interface.Engine` over a supervised child process.

    The first child is ``spawned`` where that is given, and begins to load at once; else :meth:`start` spawns it.
    """

    def __init__(
        self,
        make_engine: MakeEngine,
        config: Config,
        *,
        spawned: Spawned | None = None,
        stall_timeout: float = 10.0,
        wedge_timeout: float = 120.0,
    ) -> None:
        super().__init__(controls_of(config))
        self._make_engine = make_engine
        self._config = config
        self._stall_timeout = stall_timeout
        self._wedge_timeout = wedge_timeout
        self._encode = msgspec.msgpack.Encoder().encode
        self._spawned = None if spawned is None else self._begin(spawned)
        self._child: _Child | None = None
        self._card: ModelCard | None = None
        self._last_report = 0.0
        self._first: asyncio.Future[ModelCard]
        """Is done once the first child is ready, or has ended before that."""
        self._supervisor: asyncio.Task[None] | None = None
        self._held: list[SetControls] = []
        """Changes of the controls that were asked for while the engine restarts."""
        self._stopping = asyncio.Event()
        self.restarts = 0

    async def start(self) -> ModelCard:
        """Start the child and wait until it can answer. Raises :class:`ModelError` or :class:`EngineDied`."""
        self._first = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.create_task(self._supervise(), name="ekiden-supervisor")
        return await asyncio.shield(self._first)  # a start that is given up leaves it to the supervisor

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Let what runs finish for ``drain_seconds``, abort the rest, end the child. Harmless when repeated."""
        self._stopping.set()
        self._send(Stop(drain_seconds))
        if self._child is not None and not self._child.ready:  # it is loading, and would read that only afterwards
            self._child.process.kill()
        if self._supervisor is not None:
            await asyncio.wait([self._supervisor], timeout=drain_seconds + 5.0)
            if self._child is not None:
                self._child.process.kill()
            await self._supervisor
            self._supervisor = None
            self._fail_all(SHUTTING_DOWN)

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
        if self._stopping.is_set():
            return Health.STOPPED
        if self._child is None or not self._child.ready:
            return Health.STARTING if self._card is None else Health.DEAD
        if self._silent_for() > self._stall_timeout:
            return Health.STALLED
        return Health.OK

    def _check_running(self) -> None:
        if self._child is None or not self._child.ready or self._stopping.is_set():
            raise EngineDied("the engine is not running; try again shortly")
        if not self._streams:
            self._last_report = time.monotonic()  # an idle engine sends nothing, so its silence is counted from now on

    def note_refusal(self, refused: RefusedCall) -> bool:
        child = self._child
        may = child is not None and child.ready and child.outbox.qsize() < MAX_QUEUED_NOTES
        return may and super().note_refusal(refused)

    async def set_controls(self, change: ControlChange) -> ControlState:
        if self.health is Health.DEAD:  # the next engine is told
            return await self._ask(change, self._held.append)
        return await super().set_controls(change)

    def _silent_for(self) -> float:
        """Seconds without a report while there is work."""
        return time.monotonic() - self._last_report if self._streams else 0.0

    def _send(self, command: Command) -> None:
        if self._child is not None:
            self._child.outbox.put(self._encode(command))

    # --- supervision

    async def _supervise(self) -> None:
        pause = 0.5
        while not self._stopping.is_set():
            started = time.monotonic()
            await self._run_child()
            if self._first.exception() is not None:
                return
            self.restarts += 1
            pause = 0.5 if time.monotonic() - started > 60.0 else min(pause * 2, 30.0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), timeout=pause)

    async def _run_child(self) -> None:
        """One child from start to end; every stream it leaves open fails."""
        spawned, self._spawned = self._spawned or self._begin(spawn(engine_main)), None
        child = self._child = _Child(spawned, self._take)
        try:
            while not child.closed.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(child.closed.wait(), timeout=1.0)
                if self._silent_for() > self._wedge_timeout:
                    child.process.kill()
        finally:
            self._child = None
            await child.end()
            failure = child.failure or f"the engine process ended unexpectedly (exit code {child.process.exitcode})"
            self._fail_all(SHUTTING_DOWN if self._stopping.is_set() else failure, self._held)
            if not self._first.done():
                self._first.set_exception(EngineDied(failure))

    def _begin(self, spawned: Spawned) -> Spawned:
        """Tell a process what to load."""
        with contextlib.suppress(OSError):  # the process has died already, which the reader notices
            spawned.connection.send((self._make_engine, self._config))
        return spawned

    def _take(self, child: "_Child", report: Report) -> None:
        """Handle a report of the child, on the event loop."""
        self._last_report = time.monotonic()
        match report:
            case Stepped(updates, stats):
                self._take_step(updates, stats)
            case Answered(number, answer):
                self._take_answer(number, answer)
            case Ready(card, ledger):
                child.ready = True
                self._card = card
                self.ledger_path = None if ledger is None else Path(ledger)
                for command in (SetControls(self.controls().changes), *self._held):
                    self._send(command)
                self._held.clear()
                if not self._first.done():
                    self._first.set_result(card)
            case Failed(message, permanent):
                child.failure = message
                if not self._first.done():
                    self._first.set_exception(ModelError(message) if permanent else EngineDied(message))


class _Child:
    """One engine process with the two threads that serve its pipe. ``take`` is called on the event loop."""

    def __init__(self, spawned: Spawned, take: "Callable[[_Child, Report], None]") -> None:
        self._connection, self.process = spawned
        self._take = take
        self._events = asyncio.get_running_loop()
        self.ready = False
        self.failure: str | None = None
        """Why it ends, once it has reported that."""
        self.outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.closed = asyncio.Event()
        """Set after its last report was taken."""
        threading.Thread(
            target=_write_all, args=(self._connection, self.outbox), name="ekiden-to-engine", daemon=True
        ).start()
        threading.Thread(target=self._read, name="ekiden-from-engine", daemon=True).start()

    def _read(self) -> None:
        decoder, post = msgspec.msgpack.Decoder(Report), self._events.call_soon_threadsafe
        with contextlib.suppress(RuntimeError):  # the event loop has closed; nobody is left to tell
            try:
                while True:
                    post(self._take, self, decoder.decode(self._connection.recv_bytes()))
            except (EOFError, OSError):
                post(self.closed.set)

    async def end(self) -> None:
        """Wait for the process to end, and kill it when it does not."""
        self.outbox.put(None)
        await asyncio.to_thread(self.process.join, 5.0)
        if self.process.is_alive():
            self.process.kill()
            await asyncio.to_thread(self.process.join)
        self._connection.close()
