"""How the guard, on its own thread, asks and changes an engine that lives on the server's event loop."""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from ekiden.engine.interface import Engine, EngineDied
from ekiden.state.controls import ControlChange, ControlState

PATIENCE_SECONDS: Final = 2.0
"""How long an answer is waited for. A step may take longer; the change then comes into force when it has ended."""


class NoAnswer(Exception):
    """The engine has not said that it made a change: it is being restarted, or its step takes long."""


class Hands(Protocol):
    """What the guard may do to an engine."""

    @property
    def run(self) -> Path | None:
        """The ledger of the newest run."""

    def controls(self) -> ControlState:
        """The controls in force, and the changes that made them."""

    def apply(self, change: ControlChange) -> None:
        """Make a change. Raises :class:`NoAnswer`, and :class:`ekiden.state.controls.InvalidControls`."""

    def restart(self, why: str) -> None:
        """End the engine, so that another one goes on with its requests."""


class EngineHands:
    """Those of an engine on an event loop, for other threads. ``loop`` gives that loop."""

    def __init__(
        self, engine: Engine, loop: Callable[[], asyncio.AbstractEventLoop], patience: float = PATIENCE_SECONDS
    ) -> None:
        self._engine, self._loop, self._patience = engine, loop, patience

    @property
    def run(self) -> Path | None:
        return self._engine.ledger_path

    def controls(self) -> ControlState:
        return self._engine.controls()

    def restart(self, why: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop().call_soon_threadsafe(self._engine.restart, why)

    def apply(self, change: ControlChange) -> None:
        asked = self._ask(change)
        try:
            answer = asyncio.run_coroutine_threadsafe(asked, self._loop())
        except RuntimeError as error:  # the loop has been closed
            asked.close()
            raise NoAnswer(str(error)) from error
        try:
            answer.result(self._patience + 1.0)
        except (EngineDied, TimeoutError, concurrent.futures.CancelledError) as error:
            answer.cancel()
            raise NoAnswer(str(error) or "the engine has not answered in time") from error

    async def _ask(self, change: ControlChange) -> None:
        async with asyncio.timeout(self._patience):
            await self._engine.set_controls(change)
