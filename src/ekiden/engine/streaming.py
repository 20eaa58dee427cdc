"""What the two streaming engines share: requests become streams, and controls become commands to the engine's loop."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

from ekiden.engine.interface import EngineDied, EngineStats
from ekiden.engine.loop import Abort, Command, NoteRefusal, SetControls, Submit
from ekiden.engine.streams import Stream
from ekiden.state.controls import ControlChange, Controls, ControlState, InvalidControls
from ekiden.state.request import RefusedCall, Request, RequestUpdate
from ekiden.state.sequence import PauseReason


class StreamingEngine(ABC):
    """All of :class:`ekiden.engine.interface.Engine` but ``card`` and ``health``."""

    def __init__(self, configured: Controls) -> None:
        self._streams: dict[str, Stream] = {}
        """The requests in flight, by their ids."""
        self._controls = ControlState(controls=configured)
        self._changes: dict[int, asyncio.Future[ControlState]] = {}
        """Changes of the controls that wait for the engine's answer, by the numbers of their commands."""
        self._numbers = count(1)
        self._stats = EngineStats()
        self.ledger_path: Path | None = None

    def stats(self) -> EngineStats:
        return self._stats

    def generate(self, request: Request) -> Stream:
        self._check_running()
        if request.request_id in self._streams:
            raise ValueError(f"a request with the id {request.request_id!r} is in flight already")
        stream = self._streams[request.request_id] = Stream(request, self._streams, self._send)
        stream.flight.submitted = True
        self._send(Submit(request))
        return stream

    @abstractmethod
    def _check_running(self) -> None:
        """Raises :class:`ekiden.engine.interface.EngineDied` when no request can be taken."""

    @abstractmethod
    def _send(self, command: Command) -> None:
        """Puts a command into the inbox of the engine's loop."""

    def note_refusal(self, refused: RefusedCall) -> bool:
        self._send(NoteRefusal(refused))
        return True

    async def abort(self, request_id: str, why: str | None = None) -> None:
        self._send(Abort(request_id, why))

    async def pause(self, request_id: str, by: str | None = None) -> None:
        self._pause(request_id, True, by)

    async def resume(self, request_id: str, by: str | None = None) -> None:
        self._pause(request_id, False, by)

    def _pause(self, request_id: str, paused: bool, by: str | None) -> None:
        if stream := self._streams.get(request_id):
            stream.pause(PauseReason.OPERATOR, paused, by)

    def controls(self) -> ControlState:
        return self._controls

    async def set_controls(self, change: ControlChange) -> ControlState:
        self._check_running()
        return await self._ask(change, self._send)

    async def _ask(self, change: ControlChange, send: Callable[[SetControls], None]) -> ControlState:
        """Send a change of the controls, and wait for the answer."""
        command = SetControls([change], next(self._numbers))
        answer: asyncio.Future[ControlState] = asyncio.get_running_loop().create_future()
        self._changes[command.number] = answer
        send(command)
        try:
            return await answer
        finally:
            self._changes.pop(command.number, None)

    def _take_step(self, updates: list[RequestUpdate], stats: EngineStats | None) -> None:
        """What a step brought, on the event loop."""
        self._stats = stats or self._stats
        for update in updates:
            if stream := self._streams.get(update.request_id):  # it may have been closed meanwhile
                stream.put(update)

    def _take_answer(self, number: int, answer: ControlState | str) -> None:
        """The answer to a :class:`SetControls`, on the event loop."""
        if isinstance(answer, ControlState):
            self._controls = answer
        waiting = self._changes.get(number)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, str):
            waiting.set_exception(InvalidControls(answer))
        else:
            waiting.set_result(answer)

    def _fail_all(self, message: str) -> None:
        """The engine has ended for good: tell everyone who waits for it."""
        for stream in self._streams.values():
            stream.fail(EngineDied(message))
        self._streams.clear()
        self._fail_changes(message)

    def _fail_changes(self, message: str, held: Iterable[SetControls] = ()) -> None:
        """Tell everyone whose change of the controls has no answer that the engine has ended, unless it is held."""
        kept = {command.number for command in held}
        for number, waiting in self._changes.items():
            if number not in kept and not waiting.done():
                waiting.set_exception(EngineDied(message))
