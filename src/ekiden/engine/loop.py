"""A server's engine on one thread. It obeys the commands in its inbox, takes a step, delivers the updates, and waits
when it is idle.

The inbox is filled from this process or through a pipe.
"""

import queue
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from ekiden.engine.driver import ANY_TIME, Source, abort_all, drive
from ekiden.engine.engine_core import EngineCore, StepResult
from ekiden.engine.interface import EngineStats
from ekiden.engine.marks import Marks
from ekiden.engine.preparing import Prepared, Preparing
from ekiden.sampling.structured import GrammarCompiler
from ekiden.state.controls import ControlChange, ControlState, SetBy
from ekiden.state.request import RefusedCall, Request, RequestUpdate
from ekiden.state.turn import Pause

HEARTBEAT_SECONDS = 1.0
"""How often an engine reports while all its requests are paused."""

MAX_QUEUED_NOTES = 10_000
"""A note of a refusal that finds this many commands waiting for the engine is dropped."""


class Submit(msgspec.Struct, frozen=True, tag=True):
    request: Request


class NoteRefusal(msgspec.Struct, frozen=True, tag=True):
    """Record what the HTTP layer refused."""

    refused: RefusedCall


class Abort(msgspec.Struct, frozen=True, tag=True):
    """``why``: who asked for it and why; None when the client went away."""

    request_id: str
    why: str | None = None


class SetControls(msgspec.Struct, frozen=True, tag=True):
    """Change the controls. The outcome of each change is reported with ``number``, unless that is 0."""

    changes: list[ControlChange]
    number: int = 0


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Refuse newcomers; end when all work is done, or ``drain_seconds`` from now, whichever comes first."""

    drain_seconds: float = 0.0


_STOPPED: Final = "the server stopped before the answer was complete"

Command = Submit | NoteRefusal | Abort | Pause | SetControls | Stop
Deliver = Callable[[list[RequestUpdate], EngineStats | None], None]
"""Takes what a step brought, and the statistics where they are due."""
Answer = Callable[[int, ControlState | str], None]
"""Takes the number of a :class:`SetControls` with the controls in force, or why the change was refused.

Number 0 stands for a change of the controls that no command asked for."""


class EngineLoop:
    """A source, clock and sink of :func:`ekiden.engine.driver.drive` around one inbox, which any thread may fill.

    ``grammars`` compiles what requests with a grammar need before the core sees them.

    Statistics are delivered after steps that are ``stats_seconds`` apart, and whenever no work is left. ``marks`` are
    kept of what the engine is at work on.
    """

    def __init__(
        self,
        core: EngineCore,
        deliver: Deliver,
        grammars: GrammarCompiler | None = None,
        *,
        answer: Answer,
        stats_seconds: float = 0.0,
        marks: Marks | None = None,
    ) -> None:
        self._core = core
        self._marks = marks
        if marks is not None:
            core.before_step = marks.step
        self._entering: list[str] = []
        """The requests that are being taken in."""
        self._deliver = deliver
        self._answer = answer
        self._stop_at: float | None = None
        self._was_draining = False
        self._told_epoch = 0
        self._stats_seconds = stats_seconds
        self._stats_due = 0.0
        self.inbox: queue.SimpleQueue[Command | Prepared] = queue.SimpleQueue()
        self._preparing = Preparing(grammars, self.inbox.put)

    def send(self, command: Command) -> None:
        """Put a command in the inbox, from any thread. Notes of refusals do not pile up while the engine is stuck."""
        if not isinstance(command, NoteRefusal) or self.inbox.qsize() < MAX_QUEUED_NOTES:
            self.inbox.put(command)

    def run(self) -> None:
        """Run until a :class:`Stop` has been obeyed. What is running then is aborted, and its updates are delivered."""
        if self._stop_at is not None:  # this loop has run and stopped before
            self._stop_at = None
            self._drain(self._was_draining, "start")
        self.wait_until(ANY_TIME)
        drive(self._core, self._commands(), self, self._after_step)
        for request in self._preparing.give_up():
            self._core.add_request(request)  # the core refuses it, as it is draining
        self._after_step(abort_all(self._core, self._core.request_ids, _STOPPED))

    def _commands(self) -> Source:
        """Obey all commands that have come, until it is time to stop."""
        while True:
            while not self.inbox.empty():
                self._obey(self.inbox.get_nowait())
            if self._stop_at is not None and (not self._core.has_work or self.now() >= self._stop_at):
                return
            yield ANY_TIME

    def _after_step(self, result: StepResult) -> None:
        if self._entering:
            self._mark_entered()
        now, stats = self.now(), None
        if now >= self._stats_due or not (result.computed and self._core.has_work):
            stats, self._stats_due = self._core.stats(), now + self._stats_seconds
        self._deliver(result.updates, stats)
        if self._core.controls.now.epoch != self._told_epoch:
            self._told_epoch = self._core.controls.now.epoch
            self._answer(0, self._core.controls.state)

    def _mark_entered(self) -> None:
        """Intake has judged all that came but those whose grammars are being compiled."""
        held = self._preparing.held
        if len(held) < len(self._entering):
            self._entering = held
            if self._marks is not None:
                self._marks.entering(held)

    def _drain(self, draining: bool, who: str) -> None:
        change = ControlChange(values={"draining": draining}, set_by=SetBy.SOFTWARE_RULE, who=who)
        self._core.set_controls(change)

    def now(self) -> float:
        return time.monotonic()

    def wait_until(self, moment: float) -> None:
        """Wait for a command, no longer than until ``moment`` or the end of a drain, and obey it."""
        if self._stop_at is not None:
            moment = min(moment, self._stop_at)
        if self._marks is not None:
            self._marks.idle()
        if self._core.all_paused:
            moment = min(moment, self.now() + HEARTBEAT_SECONDS)  # the supervisor must not take silence for death
        try:
            self._obey(self.inbox.get(timeout=None if moment == ANY_TIME else max(0.0, moment - self.now())))
        except queue.Empty:
            return

    def _obey(self, command: Command | Prepared) -> None:
        match command:
            case Submit(request):
                self._entering.append(request.request_id)
                if self._marks is not None:
                    self._marks.enter(request.request_id)
                if not self._preparing.hold(request):
                    self._core.add_request(request)
            case Prepared(request):
                self._core.add_request(request)
                if (aborted := self._preparing.release(command)) is not None:
                    self._core.abort(request.request_id, aborted.why)
            case NoteRefusal(refused):
                self._core.note_refusal(refused)
            case Abort(request_id, why):
                if not self._preparing.abort(request_id, why):
                    self._core.abort(request_id, why)
            case Pause(request_id, reason, paused, by):
                (self._core.pause if paused else self._core.resume)(request_id, reason, by)
            case SetControls(changes, number):
                for change in changes:
                    self._core.set_controls(change, partial(self._answer, number) if number else None)
            case Stop(drain_seconds):
                if self._stop_at is None:
                    self._was_draining = self._core.controls.now.draining
                    self._drain(True, "shutdown")
                self._stop_at = time.monotonic() + drain_seconds
