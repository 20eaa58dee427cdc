"""The running server, as a release sees it: its controls, and the ledger of its engine.

The controls come over HTTP with an admin key, so that the server knows who acts and its ledger records it. The ledger
is read from its folder on the same machine.
"""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import httpx
import msgspec

from ekiden.errors import UserError
from ekiden.evaluation.load.target import Target
from ekiden.evidence.reader import LedgerReader, LedgerReadError
from ekiden.evidence.runs import open_run
from ekiden.ledger.retention import is_being_written
from ekiden.release.plan import ReleaseError

PATIENCE = 10.0
"""Seconds that a server may take for an answer."""


class OutOfReach(UserError, RuntimeError):
    """The server, or its ledger, gives no answer now; it may later."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One control as ``GET /admin/policy`` tells it."""

    value: Any
    set_by: str = ""
    who: str = ""
    why: str = ""
    expires_in_seconds: float | None = None


class Server(Protocol):
    """What a release needs of a server. Every method raises :class:`OutOfReach`."""

    def policy(self) -> dict[str, Told]:
        """The controls in force, by name."""

    def set(self, values: Mapping[str, Any], *, why: str, seconds: float | None) -> dict[str, Told]:
        """Change controls at the next step boundary, for so long (None: for good); returns those in force then.

        Raises :class:`ReleaseError` where the server refuses the change.
        """

    def ledger(self) -> LedgerReader:
        """The run that is being written, opened; the caller closes it."""


class HttpServer:
    """A :class:`Server` over HTTP. ``folder`` has the recorded runs of its engine."""

    def __init__(self, target: Target, folder: Path) -> None:
        self._target, self._folder = target, folder
        self._root = f"{target.root}".rstrip("/")
        self._client = target.client(timeout=PATIENCE)
        self._run: Path | None = None

    def close(self) -> None:
        self._client.close()

    def policy(self) -> dict[str, Told]:
        return _controls(self._ask("GET", "/admin/policy"))

    def set(self, values: Mapping[str, Any], *, why: str, seconds: float | None) -> dict[str, Told]:
        body: dict[str, Any] = {"set": dict(values), "reason": why[:500]}
        if seconds is not None:
            body["expires_in_seconds"] = seconds
        return _controls(self._ask("POST", "/admin/policy", body))

    def ledger(self) -> LedgerReader:
        try:
            if self._run is None or not is_being_written(self._run):
                view = msgspec.json.decode(self._ask("GET", "/admin/live"))
                with open_run(self._folder, view["run_id"]) as reader:
                    self._run = reader.path
            return LedgerReader(self._run)
        except (LedgerReadError, sqlite3.Error, OSError, msgspec.DecodeError, KeyError) as error:
            self._run = None
            raise OutOfReach(
                f"the ledger of the server is not in {self._folder}, or cannot be read: {error}"
            ) from error

    def _ask(self, method: str, path: str, body: object = None) -> bytes:
        url = self._root + path
        try:
            answer = self._client.request(method, url, json=body)
        except httpx.HTTPError as error:
            raise OutOfReach(self._target.no_answer(url, error)) from error
        if answer.status_code >= 500 or answer.status_code == 429:
            raise OutOfReach(f"{url} answered {answer.status_code}: {answer.text[:300]}")
        if answer.status_code >= 400:
            told = answer.text[:500]
            hint = "; a key of scope admin is needed (--api-key)" if answer.status_code in (401, 403, 404) else ""
            raise ReleaseError(f"{url} answered {answer.status_code}: {told}{hint}")
        return answer.content


class _Policy(msgspec.Struct):
    controls: dict[str, Told]


def _controls(content: bytes) -> dict[str, Told]:
    try:
        return msgspec.json.decode(content, type=_Policy).controls
    except msgspec.DecodeError as error:
        raise OutOfReach(f"the server did not answer as one of this version does: {error}") from error
