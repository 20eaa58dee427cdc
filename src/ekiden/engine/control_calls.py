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
        """What the engine told last."""
        self._send = send
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[ControlState]] = {}
        self._held: list[SetControls] = []

    async def set(self, change: ControlChange, *, hold: bool = False) -> ControlState:
        """Ask for a change and wait for the answer. With ``hold`` the engine is asked when it is ready again.

        Raises :class:`InvalidControls` when it is refused and :class:`EngineDied` when the engine ends before.
        """
        command = SetControls([change], next(self._numbers))
        answer: asyncio.Future[ControlState] = asyncio.get_running_loop().create_future()
        self._waiting[command.number] = answer
        if hold:
            self._held.append(command)
        else:
            self._send(command)
        try:
            return await answer
        finally:
            self._waiting.pop(command.number, None)

    def restarted(self) -> None:
        """A new engine is ready: tell it the changes in force, then those that were asked for while there was none."""
        held, self._held = self._held, []
        for command in (SetControls(self.state.changes), *held):
            self._send(command)

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

    def fail_all(self, message: str, *, held: bool = False) -> None:
        """The engine has ended. What is held waits for the next one, unless there is none (``held``)."""
        if held:
            self._held.clear()
        kept = {command.number for command in self._held}
        for number, waiting in self._waiting.items():
            if number not in kept and not waiting.done():
                waiting.set_exception(EngineDied(message))
