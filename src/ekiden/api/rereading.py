"""SIGHUP: the files of keys, limits, tenants and the guard's rules are read again.

What differs from the last reading becomes a change of the controls, so what a person has set meanwhile stays. Limits
that the HTTP side keeps (body size, timeouts) change with them. A file that cannot be used is told in one line of the
log and changes nothing.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from ekiden.api.doors.door import Doors
from ekiden.api.keys import KeyStore
from ekiden.config import Config, ConfigError, controls_of
from ekiden.engine.interface import EngineDied
from ekiden.guard.assemble import read_rules
from ekiden.guard.runtime import Guard
from ekiden.state.controls import ControlChange, ControlValue, InvalidControls, SetBy

_FIELDS: Final = ("max_num_queued_reqs", "max_num_queued_tokens", "max_queue_seconds", "abstain", "tenants")

logger = logging.getLogger(__name__)


class Rereading:
    """``read_config`` gives the configuration as its sources have it now; None where there is nothing to read. The file
    of ``guard``'s rules is the one that the server was started with."""

    def __init__(
        self,
        doors: Doors,
        keys: KeyStore,
        config: Config,
        read_config: Callable[[], Config] | None,
        guard: Guard | None = None,
    ) -> None:
        self._doors = doors
        self._keys = keys
        self._config = config
        self._read_config = read_config
        self._guard = guard
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Read in the background; a signal that comes while that goes on is for nothing."""
        self._keys.reload()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        if self._read_config is not None:
            await self._read_limits(self._read_config)
        if self._guard is not None:
            await asyncio.to_thread(self._guard.reread, partial(read_rules, self._config), "SIGHUP")

    async def _read_limits(self, read_config: Callable[[], Config]) -> None:
        was = self._config
        try:
            config = await asyncio.to_thread(read_config)
            old, new = controls_of(was), controls_of(config)
            values: dict[str, ControlValue] = {
                name: getattr(new, name) for name in _FIELDS if getattr(new, name) != getattr(old, name)
            }
            if values:
                why = "the files of limits and tenants were read again"
                await self._doors.generation.engine.set_controls(
                    ControlChange(values=values, set_by=SetBy.CONFIGURATION, who="SIGHUP", why=why)
                )
        except (ConfigError, InvalidControls, EngineDied) as error:
            logger.error("the limits stay as they were: %s", error)
            return
        self._config = replace(was, limits=config.limits, tenants=config.tenants)
        self._doors.limits = config.limits
        if self._guard is not None:
            await asyncio.to_thread(self._guard.reconfigure, controls_of(self._config))
        logger.info("read the limits and the tenants again; changed in the engine: %s", ", ".join(values) or "nothing")
