"""Drives an engine core on one thread: drain the inbox, take a step, deliver the updates; sleep only when idle.

The loop neither knows nor cares whether its inbox is filled from this process or through a pipe.
"""

import queue
import time
from collections.abc import Callable

import msgspec

from ekiden.engine.engine_core import EngineCore, StepResult
from ekiden.engine.interface import EngineStats
from ekiden.engine.preparing import Prepared, Preparing
from ekiden.sampling.structured import GrammarCompiler
from ekiden.state.request import Request, RequestUpdate
from ekiden.state.sequence import PauseReason

HEARTBEAT_SECONDS = 1.0
"""How often an engine reports whose requests are all paused."""


class Submit(msgspec.Struct, frozen=True, tag=True):
    request: Request


class Abort(msgspec.Struct, frozen=True, tag=True):
    request_id: str


class Pause(msgspec.Struct, frozen=True, tag=True):
    """Hold a request back for a reason, or (``paused`` False) withdraw that reason. ``by``: the person who asked."""

    request_id: str
    reason: PauseReason
    paused: bool
    by: str | None = None


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Refuse newcomers, or (``draining`` False) take them again."""

    draining: bool


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Refuse newcomers; end when all work is done, or ``drain_seconds`` from now, whichever comes first."""

    drain_seconds: float = 0.0


Command = Submit | Abort | Pause | Drain | Stop
Deliver = Callable[[list[RequestUpdate], EngineStats | None], None]
"""Takes what a step brought, and the statistics where they are due."""


class EngineLoop:
    """``grammars`` compiles what requests with a grammar need before the core sees them.

    Statistics are delivered after steps that are ``stats_seconds`` apart, and whenever no work is left.
    """

    def __init__(
        self,
        core: EngineCore,
        deliver: Deliver,
        grammars: GrammarCompiler | None = None,
        *,
        stats_seconds: float = 0.0,
    ) -> None:
        self._core = core
        self._deliver = deliver
        self._stop_at: float | None = None
        self._draining = False
        self._stats_seconds = stats_seconds
        self._stats_due = 0.0
        self.inbox: queue.SimpleQueue[Command | Prepared] = queue.SimpleQueue()
        self._preparing = Preparing(grammars, self.inbox.put)

    def run(self) -> None:
        """Until a :class:`Stop` has been obeyed. What is still running then is aborted, and its updates delivered."""
        wait: float | None = None
        self._begin()
        while True:
            self._take_commands(wait)
            if self._stop_at is not None and (not self._core.has_work or time.monotonic() >= self._stop_at):
                break
            result = self._core.step()
            if self._stop_at is None:
                # Only now: requests that were sent before the door was closed are inside.
                self._core.intake.draining = self._draining
            self._report(result)
            wait = 0.0 if result.computed else self._idle_seconds(result.next_change)
        for request_id in list(self._core.population.by_id):
            self._core.abort(request_id)
        for request in self._preparing.give_up():
            self._core.add_request(request)  # to be refused
        self._deliver(self._core.step().updates, self._core.stats())

    def _report(self, result: StepResult) -> None:
        now = time.monotonic()
        stats = None
        if now >= self._stats_due or not (result.computed and self._core.has_work):
            stats, self._stats_due = self._core.stats(), now + self._stats_seconds
        self._deliver(result.updates, stats)

    def _begin(self) -> None:
        """A loop may have run, and stopped, before."""
        self._stop_at, self._core.intake.draining = None, self._draining

    def _idle_seconds(self, next_change: float | None) -> float | None:
        """How long nothing can happen without a command; None for ever."""
        times = [time for time in (next_change, self._stop_at) if time is not None]
        if self._core.all_paused:
            times.append(time.monotonic() + HEARTBEAT_SECONDS)  # whoever watches must not take the silence for death
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _take_commands(self, wait: float | None) -> None:
        try:
            command = self.inbox.get(block=wait != 0.0, timeout=wait)
            while True:
                self._obey(command)
                command = self.inbox.get_nowait()
        except queue.Empty:
            return

    def _obey(self, command: Command | Prepared) -> None:
        match command:
            case Submit(request):
                if not self._preparing.hold(request):
                    self._core.add_request(request)
            case Prepared(request):
                self._core.add_request(request)
                if self._preparing.release(command):
                    self._core.abort(request.request_id)
            case Abort(request_id):
                if not self._preparing.abort(request_id):
                    self._core.abort(request_id)
            case Pause(request_id, reason, paused, by):
                (self._core.pause if paused else self._core.resume)(request_id, reason, by)
            case Drain(draining):
                self._draining = draining
                if not draining and self._stop_at is None:
                    self._core.intake.draining = False
            case Stop(drain_seconds):
                self._core.intake.draining = True
                self._stop_at = time.monotonic() + drain_seconds
