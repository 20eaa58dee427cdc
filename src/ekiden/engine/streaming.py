"""What the two streaming engines share: requests become streams, and controls become commands to the engine's loop."""

from abc import ABC, abstractmethod
from pathlib import Path

from ekiden.engine.control_calls import ControlCalls
from ekiden.engine.interface import EngineStats
from ekiden.engine.loop import Abort, Command, NoteRefusal
from ekiden.engine.streams import Stream, Streams
from ekiden.state.controls import ControlChange, Controls, ControlState
from ekiden.state.request import RefusedCall, Request
from ekiden.state.sequence import PauseReason
from ekiden.state.turn import Pause


class StreamingEngine(ABC):
    """All of :class:`ekiden.engine.interface.Engine` but ``card`` and ``health``."""

    def __init__(self, configured: Controls) -> None:
        self._streams = Streams(self._send)
        self._control_calls = ControlCalls(self._send, configured)
        self._stats = EngineStats()
        self._ledger_path: Path | None = None

    @property
    def ledger_path(self) -> Path | None:
        return self._ledger_path

    def stats(self) -> EngineStats:
        return self._stats

    def generate(self, request: Request) -> Stream:
        self._check_running()
        return self._streams.open(request)

    @abstractmethod
    def _check_running(self) -> None:
        """Raises :class:`ekiden.engine.interface.EngineDied` when no request can be taken."""

    @abstractmethod
    def _send(self, command: Command) -> None:
        """Puts a command into the inbox of the engine's loop."""

    def note_refusal(self, refused: RefusedCall) -> None:
        self._send(NoteRefusal(refused))

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

    def _fail_all(self, message: str) -> None:
        """The engine has ended: whoever waits for something of it is told."""
        self._streams.fail_all(message)
        self._control_calls.fail_all(message)
