"""Changes of the controls that wait for the engine's answer. All methods run on the event loop's thread."""

import asyncio
from collections.abc import Callable
from itertools import count

from ekiden.engine.interface import EngineDied
from ekiden.engine.loop import SetControls
from ekiden.state.controls import ControlChange, Controls, ControlState, InvalidControls


class ControlCalls:
    def __init__(self, send: Callable[[SetControls], None], configured: Controls) -> None:
        self.state = ControlState(controls=configured)
        """The controls in force, as the engine reported them last."""
        self._send = send
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[ControlState]] = {}

    async def set(self, change: ControlChange) -> ControlState:
        """Raises :class:`InvalidControls` when it is refused and :class:`EngineDied` when the engine ends before."""
        number = next(self._numbers)
        answer: asyncio.Future[ControlState] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._send(SetControls([change], number))
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)

    def answered(self, number: int, answer: ControlState | str) -> None:
        if isinstance(answer, ControlState):
            self.state = answer
        waiting = self._waiting.get(number)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, str):
            waiting.set_exception(InvalidControls(answer))
        else:
            waiting.set_result(answer)

    def fail_all(self, message: str) -> None:
        """The engine has ended."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(EngineDied(message))
