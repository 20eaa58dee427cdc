"""What the page asks for beside the stream: ``/dashboard/data/``.

What reads a ledger runs on one thread of its own, so that a page that asks for much waits for itself, and neither the
answers of the model nor the probes wait for it.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ekiden.api.asgi import JsonBytes
from ekiden.api.auth import PRINCIPAL, is_admin
from ekiden.api.errors import ApiError, invalid, ledger_off, retry_after, shown
from ekiden.api.flight import Flight
from ekiden.api.keys import KeyStore, Principal
from ekiden.config import BATCHING, ORDERS, Config, ConfigError, meanings_of_controls
from ekiden.dashboard.comparison import compare
from ekiden.dashboard.files import LANGUAGES
from ekiden.dashboard.frames import Frames
from ekiden.dashboard.period import changes_of, period
from ekiden.dashboard.request_list import list_requests
from ekiden.dashboard.run_list import list_runs, open_named, open_with_request
from ekiden.dashboard.shapes import PHASES, Comparison, PageConfig, RequestStory
from ekiden.dashboard.story import stories
from ekiden.dashboard.what_if import Busy, Simulator, TooLong, typed
from ekiden.engine.interface import Engine
from ekiden.evidence.listing import BY
from ekiden.evidence.reader import LedgerReader, LedgerReadError
from ekiden.evidence.runs import open_run
from ekiden.guard.runtime import Guard
from ekiden.guardrails.readings import DEFAULT_OBJECTIVES
from ekiden.ledger.retention import ledger_folder
from ekiden.version import __version__

T = TypeVar("T")
_LONGEST: Final = 200
"""Characters of a parameter."""
DEFAULT_LINES: Final = 20
MOST_LINES: Final = 100
_PATIENCE: Final = (0.0, 0.15, 0.3)
"""Seconds to wait before each look for a request: the ledger is up to a fifth of a second behind the engine."""


class PageJson(JsonBytes):
    """What the page was told, which nobody is to keep."""

    def __init__(self, payload: object) -> None:
        super().__init__(payload)
        self.headers["cache-control"] = "no-store"


class PageData:
    def __init__(
        self, engine: Engine, flight: Flight, guard: Guard | None, config: Config, keys: KeyStore, frames: Frames
    ) -> None:
        self._engine, self._flight, self._guard = engine, flight, guard
        self._config, self._keys, self._frames = config, keys, frames
        self._simulator = Simulator()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ekiden-page-data")

    @property
    def current(self) -> str | None:
        """The run that the newest engine writes."""
        path = self._engine.ledger_path
        return None if path is None else path.stem

    @property
    def has_keys(self) -> bool:
        return self._keys.required

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
        return PageJson(
            PageConfig(
                version=__version__,
                model=card.model_id,
                has_keys=self.has_keys,
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
                meanings=meanings_of_controls(),
                batching=list(BATCHING),
                orders=list(ORDERS),
                objectives=msgspec.to_builtins(objectives),
            )
        )

    async def runs(self, request: Request) -> Response:
        folder = self.folder
        return PageJson({"runs": await self.read(lambda: list_runs(folder))})

    async def period(self, request: Request) -> Response:
        """A part of a run: ``from`` and ``to`` are seconds since it began, by default its last minute."""
        since, until = number(request, "from"), number(request, "to")
        if since is not None and until is not None and until <= since:
            raise invalid("to", f"to is {until:g} and from is {since:g}; a period ends after it begins.")
        open_it = self._opened(request)
        return PageJson(await self.read(lambda: _with(open_it, lambda reader: period(reader, since, until))))

    async def changes(self, request: Request) -> Response:
        """What persons and the guard set in a run, from its beginning."""
        open_it = self._opened(request)
        return PageJson(await self.read(lambda: _with(open_it, changes_of)))

    async def requests(self, request: Request) -> Response:
        by = choice(request, "by", BY)
        count = round(number(request, "limit", least=1, most=MOST_LINES) or DEFAULT_LINES)
        since, until, tenant = number(request, "from"), number(request, "to"), asked(request, "tenant")
        open_it = self._opened(request)
        return PageJson(
            await self.read(
                lambda: _with(
                    open_it, lambda reader: list_requests(reader, since, until, by=by, tenant=tenant, count=count)
                )
            )
        )

    async def request(self, request: Request) -> Response:
        """Every answer of a call, in the run that is named or the newest that knows it."""
        wanted, run, folder = given(request, "id"), asked(request, "run"), self.folder
        told: list[RequestStory] = []
        for left, pause in zip(reversed(range(len(_PATIENCE))), _PATIENCE, strict=True):
            await asyncio.sleep(pause)
            try:
                told = await self.read(lambda: stories(folder, wanted, run))
            except ApiError:
                if not left:
                    raise
            ended = bool(told) and all(one.explanation.status != "in_flight" for one in told)
            if ended or (told and self._flight.answers_of(wanted)):
                break
        return PageJson({"request_id": wanted, "in_flight": self._flight.answers_of(wanted), "stories": told})

    async def what_if(self, request: Request) -> Response:
        """``id`` names the request, ``run`` its run; every other parameter is a setting and its value."""
        wanted, run, folder = given(request, "id"), asked(request, "run"), self.folder
        names = ("id", "run")
        settings = {name: value for name, value in request.query_params.items() if name not in names}
        try:
            changes = typed(settings)
            path, row = await self.read(lambda: _found(folder, wanted, run))
            async with self._flight.watch(request.receive):
                return PageJson(await self._simulator.ask(path, row, changes))
        except ClientDisconnect:
            return Response()  # nobody is left to read it
        except ConfigError as error:
            raise invalid(None, f"{error}.") from error
        except Busy as error:
            raise ApiError(503, f"{error}.", code="busy", headers=retry_after(5.0)) from error
        except TooLong as error:
            raise ApiError(503, f"{error}.", code="too_long") from error

    async def compare(self, request: Request) -> Response:
        """``a`` and ``b`` are runs; ``from`` and ``to`` are seconds after the first arrival of each."""
        names, folder = (given(request, "a"), given(request, "b")), self.folder
        start, end = number(request, "from") or 0.0, number(request, "to")
        if end is not None and end <= start:
            raise invalid("to", f"to is {end:g} and from is {start:g}; a period ends after it begins.")
        seconds = None if end is None else end - start

        def work() -> Comparison:
            with open_named(folder, names[0]) as a, open_named(folder, names[1]) as b:
                return compare(a, b, start=start, seconds=seconds)

        return PageJson(await self.read(work))

    def _opened(self, request: Request) -> Callable[[], LedgerReader]:
        """Opens the run that is named, or the one that is being written."""
        run, folder, current = asked(request, "run"), self.folder, self._engine.ledger_path
        if run is None and current is not None:
            return lambda: LedgerReader(current)
        return lambda: open_run(folder, "last") if run is None else open_named(folder, run)

    async def last_frame(self, run: str) -> bytes:
        """The frame of a run that is not being written, as an event."""
        folder = self.folder
        return await self.read(lambda: self._frames.of_ended(folder, run))


def _with(open_it: Callable[[], LedgerReader], work: Callable[[LedgerReader], T]) -> T:
    with open_it() as reader:
        return work(reader)


def _found(folder: Path, request_id: str, run: str | None) -> tuple[Path, int]:
    """A run's file, and the number of a request in it."""
    reader, rows = open_with_request(folder, request_id, run)
    with reader:
        return reader.path, rows[0].request


def given(request: Request, name: str) -> str:
    """A parameter that must be there."""
    value = asked(request, name)
    if value is None:
        raise invalid(name, f"{name} is missing.")
    return value


def number(request: Request, name: str, *, least: float = 0.0, most: float = 1e9) -> float | None:
    """A number in the address; None where it is missing."""
    text = asked(request, name)
    try:
        value = None if text is None else float(text)
    except ValueError:
        value = -inf
    if value is not None and not least <= value <= most:
        raise invalid(name, f"{name} is {shown(text)}; it must be a number from {least:g} to {most:g}.")
    return value


def choice(request: Request, name: str, choices: tuple[str, ...]) -> str:
    """One of several words; the first where it is missing."""
    value = asked(request, name) or choices[0]
    if value not in choices:
        raise invalid(name, f"{name} is {shown(value)}; it must be one of {', '.join(choices)}.")
    return value


def asked(request: Request, name: str) -> str | None:
    """A parameter of the address; None where it is missing or empty. Raises :class:`ApiError` for one too long."""
    value = request.query_params.get(name)
    if value is not None and len(value) > _LONGEST:
        raise invalid(name, f"{name} is {shown(value)}; it may have {_LONGEST} characters.")
    return value or None
