"""The engine in a process of its own, and the supervisor that keeps one alive.

Parent and child talk in msgpack messages over one pipe, each end with a reader and a writer thread, so that neither a
stopped child can block the parent's event loop nor a busy parent a step. The child ends when the pipe does.

The child reports every step. The parent's reader thread hands a report straight to the streams, on the event loop; the
supervisor only waits for the child's end. It restarts an engine that died, at once when that had given tokens, else
with a growing pause. It also restarts one that is wedged, which means no report for ``wedge_timeout`` seconds while
requests are in flight. ``health`` is STALLED from ``stall_timeout`` seconds on, and OK again as soon as tokens move.

Streams outlive an engine: the next one goes on with their requests (:mod:`ekiden.engine.recovery`). Their readers see
the tokens of an undisturbed run, or :class:`EngineDied`. While there is no engine, requests are aborted and meet their
deadlines here, and new ones are refused with :class:`EngineDied`.
"""

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ekiden.config import Config, controls_of
from ekiden.engine.child import Answered, Failed, MakeEngine, Ready, Report, Stepped, engine_main, write_all
from ekiden.engine.interface import EngineDied, Health, ModelCard
from ekiden.engine.lasting import LastingStreams
from ekiden.engine.loop import MAX_QUEUED_NOTES, Command, SetControls, Stop
from ekiden.engine.spawn import Spawned, spawn
from ekiden.ledger.dead_ends import record_dead_ends
from ekiden.models.errors import ModelError
from ekiden.state.controls import ControlChange, ControlState
from ekiden.state.request import RefusedCall

logger = logging.getLogger(__name__)

SHUTTING_DOWN = "the server is shutting down"
END_SECONDS = 5.0
"""How long an engine that is told to stop gets to close its ledger."""
HURRIED_SECONDS = 1.0
"""The same once somebody has become impatient."""


class EngineClient(LastingStreams):
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
        super().__init__(controls_of(config), config.tenants)
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
        self._hurried = asyncio.Event()

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
            await self._ended_within(self._supervisor, drain_seconds + END_SECONDS)
            if self._child is not None:
                self._child.process.kill()
            await self._supervisor
            self._supervisor = None
            self._fail_all(SHUTTING_DOWN)

    def hurry(self) -> None:
        """Somebody asks a second time for the end: an engine that does not end soon by itself is killed."""
        self._hurried.set()

    async def _ended_within(self, supervisor: "asyncio.Task[None]", seconds: float) -> None:
        hurried = asyncio.create_task(self._hurried.wait())
        try:
            await asyncio.wait([supervisor, hurried], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if hurried.done() and not supervisor.done():
                await asyncio.wait([supervisor], timeout=HURRIED_SECONDS)
        finally:
            hurried.cancel()

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
            raise EngineDied("the engine is being restarted")
        if not self._has_work:
            self._last_report = time.monotonic()  # an idle engine sends nothing, so its silence is counted from now on

    def note_refusal(self, refused: RefusedCall) -> bool:
        child = self._child
        if child is not None and child.ready and child.outbox.qsize() < MAX_QUEUED_NOTES:
            return super().note_refusal(refused)
        self._totals.count_refusal(refused)
        return True

    async def set_controls(self, change: ControlChange) -> ControlState:
        if self.health is Health.DEAD:  # the next engine is told
            return await self._ask(change, self._held.append)
        return await super().set_controls(change)

    def restart(self, why: str) -> None:
        if self._child is not None and self._child.ready and not self._stopping.is_set():
            self._child.failure = self._child.failure or f"it was restarted: {why}"
            self._child.process.kill()

    def _silent_for(self) -> float:
        """Seconds without a report while there is work."""
        ready = self._child is not None and self._child.ready
        return time.monotonic() - self._last_report if ready and self._has_work else 0.0

    def _put(self, command: Command) -> None:
        if self._child is not None:
            self._child.outbox.put(self._encode(command))

    # --- supervision

    async def _supervise(self) -> None:
        pause = 0.0
        while not self._stopping.is_set():
            gave_tokens = await self._run_child()
            if self._first.exception() is not None:
                return
            self._totals.restarts += 1
            pause = 0.0 if gave_tokens else min(max(0.5, pause * 2), 30.0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), timeout=pause)

    async def _run_child(self) -> bool:
        """One child from start to end; what it leaves unfinished is judged. Returns whether it had given tokens."""
        spawned, self._spawned = self._spawned or self._begin(spawn(engine_main)), None
        child = self._child = _Child(spawned, self._take)
        try:
            while not child.closed.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(child.closed.wait(), timeout=1.0)
                if (silent := self._silent_for()) > self._wedge_timeout:
                    child.failure = f"the engine took no step for {silent:.0f} s while requests were in flight"
                    child.process.kill()
        finally:
            self._child = None
            self._totals.engine_ended()
            await child.end()
            failure = child.failure or f"the engine process ended unexpectedly (exit code {child.process.exitcode})"
            if self._stopping.is_set():
                self._fail_all(SHUTTING_DOWN)
            else:
                await self._take_over(child, failure)
            if not self._first.done():
                self._first.set_exception(EngineDied(failure))
        return child.gave_tokens

    async def _take_over(self, child: "_Child", failure: str) -> None:
        """See to what a child that has ended leaves behind."""
        at = time.monotonic()
        self._fail_changes(failure, self._held)
        if not child.ready:
            self._judge_failed_start(failure, permanent=child.permanent)
            return
        ends = self._judge(child.words, child.run_id, failure)
        if self.ledger_path is not None:
            try:
                await asyncio.to_thread(record_dead_ends, self.ledger_path, ends, at, failure)
            except (OSError, sqlite3.Error) as error:
                logger.error("the end of the engine cannot be recorded in %s: %s", self.ledger_path, error)

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
                child.gave_tokens = child.gave_tokens or any(update.token_ids for update in updates)
                self._take_step(updates, stats)
            case Answered(number, answer):
                self._take_answer(number, answer)
            case Ready(card, ledger):
                child.ready = True
                self._card = card
                self.ledger_path = None if ledger is None else Path(ledger)
                child.run_id = None if self.ledger_path is None else self.ledger_path.stem
                for command in (SetControls(self.controls().changes), *self._held):
                    self._send(command)
                self._held.clear()
                self._run_waiting()
                if not self._first.done():
                    self._first.set_result(card)
            case Failed(message, permanent):
                child.failure, child.permanent = message, permanent
                if not self._first.done():
                    self._first.set_exception(ModelError(message) if permanent else EngineDied(message))


class _Child:
    """One engine process with the two threads that serve its pipe. ``take`` is called on the event loop."""

    def __init__(self, spawned: Spawned, take: "Callable[[_Child, Report], None]") -> None:
        self._connection, self.process, self.words = spawned
        self._take = take
        self._events = asyncio.get_running_loop()
        self.ready = False
        self.failure: str | None = None
        """Why it ends, once it has reported that; ``permanent``: another one would end too."""
        self.permanent = False
        self.gave_tokens = False
        self.run_id: str | None = None
        self.outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.closed = asyncio.Event()
        """Set after its last report was taken."""
        threading.Thread(
            target=write_all, args=(self._connection, self.outbox), name="ekiden-to-engine", daemon=True
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
