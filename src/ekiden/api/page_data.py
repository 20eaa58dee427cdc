"""What the page asks for beside the stream: ``/dashboard/data/``.

What reads a ledger runs on one thread of its own, so that a page that asks for much waits for itself, and neither the
answers of the model nor the probes wait for it.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ekiden.api.asgi import JsonBytes
from ekiden.api.auth import PRINCIPAL, is_admin
from ekiden.api.errors import ApiError, invalid, ledger_off, shown
from ekiden.api.keys import KeyStore, Principal
from ekiden.config import BATCHING, ORDERS, Config
from ekiden.dashboard.files import LANGUAGES
from ekiden.dashboard.frames import Frames
from ekiden.dashboard.run_list import list_runs
from ekiden.dashboard.shapes import PHASES, PageConfig
from ekiden.engine.interface import Engine
from ekiden.evidence.reader import LedgerReadError
from ekiden.guard.runtime import Guard
from ekiden.guardrails.readings import DEFAULT_OBJECTIVES
from ekiden.ledger.retention import ledger_folder
from ekiden.version import __version__

T = TypeVar("T")
_LONGEST = 100
"""Characters of a parameter."""


class PageData:
    def __init__(self, engine: Engine, guard: Guard | None, config: Config, keys: KeyStore, frames: Frames) -> None:
        self._engine, self._guard, self._config, self._keys, self._frames = engine, guard, config, keys, frames
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ekiden-page-data")

    @property
    def current(self) -> str | None:
        """The run that the newest engine writes."""
        path = self._engine.ledger_path
        return None if path is None else path.stem

    @property
    def folder(self) -> Path:
        """Where runs are recorded. Raises :class:`ApiError` where none are."""
        if not self._config.ledger.ledger:
            raise ledger_off()
        path = self._engine.ledger_path
        return ledger_folder(self._config.ledger) if path is None else path.parent

    async def read(self, work: Callable[[], T]) -> T:
        """Read ledgers on the thread for that. Raises :class:`ApiError` for what is not there or cannot be read."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except LedgerReadError as error:
            raise ApiError(404, f"{error}.", code="not_in_ledger") from error
        except (sqlite3.Error, msgspec.DecodeError) as error:
            raise ApiError(409, f"The ledger cannot be read: {error}.", code="ledger_damaged") from error

    async def config(self, request: Request) -> Response:
        principal: Principal | None = request.scope.get(PRINCIPAL)
        card, state, path = self._engine.card, self._engine.controls(), self._engine.ledger_path
        guard = self._guard
        objectives = DEFAULT_OBJECTIVES if guard is None else guard.rules.objectives
        return JsonBytes(
            PageConfig(
                version=__version__,
                model=card.model_id,
                has_keys=self._keys.required,
                may_act=is_admin(request.scope),
                can_act=self._keys.may_hold_admins,
                who=None if principal is None else principal.name,
                guard="off" if guard is None else guard.mode,
                ledger=self._config.ledger.ledger,
                languages=list(LANGUAGES),
                slots=state.controls.max_num_seqs,
                max_model_len=card.max_model_len,
                phases=list(PHASES),
                run_id=None if path is None else path.stem,
                controls=msgspec.to_builtins(state.controls),
                batching=list(BATCHING),
                orders=list(ORDERS),
                objectives=msgspec.to_builtins(objectives),
            )
        )

    async def runs(self, request: Request) -> Response:
        folder = self.folder
        return JsonBytes({"runs": await self.read(lambda: list_runs(folder))})

    async def last_frame(self, run: str) -> bytes:
        """The frame of a run that is not being written, as an event."""
        folder = self.folder
        return await self.read(lambda: self._frames.of_ended(folder, run))


def asked(request: Request, name: str) -> str | None:
    """A parameter of the address; None where it is missing or empty. Raises :class:`ApiError` for one too long."""
    value = request.query_params.get(name)
    if value is not None and len(value) > _LONGEST:
        raise invalid(name, f"{name} is {shown(value)}; it may have {_LONGEST} characters.")
    return value or None
