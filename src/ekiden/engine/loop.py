"""A server's engine on one thread: obey the commands in the inbox, take a step, deliver its updates; wait when idle.

The inbox is filled from this process or through a pipe.
"""

import queue
import time
from collections.abc import Callable

import msgspec

from ekiden.engine.driver import ANY_TIME, Source, abort_all, drive
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
    """A source, clock and sink of :func:`ekiden.engine.driver.drive` around one inbox, which any thread may fill.

    ``grammars`` compiles what requests with a grammar need before the core sees them.

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
        # A loop may have run, and stopped, before.
        self._stop_at, self._core.intake.draining = None, self._draining
        self.wait_until(ANY_TIME)
        drive(self._core, self._commands(), self, self._after_step)
        for request in self._preparing.give_up():
            self._core.add_request(request)  # to be refused
        self._after_step(abort_all(self._core, list(self._core.population.by_id)))

    def _commands(self) -> Source:
        """Obey all commands that have come, until it is time to stop."""
        while True:
            while not self.inbox.empty():
                self._obey(self.inbox.get_nowait())
            if self._stop_at is not None and (not self._core.has_work or self.now() >= self._stop_at):
                return
            yield ANY_TIME

    def _after_step(self, result: StepResult) -> None:
        if self._stop_at is None:
            # Only now: requests that were sent before the drain have been taken in by this step.
            self._core.intake.draining = self._draining
        now, stats = self.now(), None
        if now >= self._stats_due or not (result.computed and self._core.has_work):
            stats, self._stats_due = self._core.stats(), now + self._stats_seconds
        self._deliver(result.updates, stats)

    def now(self) -> float:
        return time.monotonic()

    def wait_until(self, moment: float) -> None:
        """Wait for a command, no longer than until ``moment`` or the end of a drain, and obey it."""
        if self._stop_at is not None:
            moment = min(moment, self._stop_at)
        if self._core.all_paused:
            moment = min(moment, self.now() + HEARTBEAT_SECONDS)  # the supervisor must not take silence for death
        try:
            self._obey(self.inbox.get(timeout=None if moment == ANY_TIME else max(0.0, moment - self.now())))
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
