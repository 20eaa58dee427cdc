"""The running server, as a release sees it: its controls, and the ledger of its engine.

The controls come over HTTP with an admin key, so that the server knows who acts and its ledger records it. The ledger
is read from its folder on the same machine.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import httpx
import msgspec

from ekiden.errors import UserError
from ekiden.evaluation.load.target import Target
from ekiden.evidence.reader import LedgerReader, LedgerReadError
from ekiden.evidence.runs import open_run
from ekiden.ledger.retention import is_being_written
from ekiden.release.plan import ReleaseError
from ekiden.release.state import Place

PATIENCE = 10.0
"""Seconds that a server may take for an answer."""
_RELEASE: Final = "release"
Answer = TypeVar("Answer")


class OutOfReach(UserError, RuntimeError):
    """The server, or its ledger, gives no answer now; it may later."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One control as ``GET /admin/policy`` tells it."""

    value: Any
    set_by: str = ""
    who: str = ""
    why: str = ""
    expires_in_seconds: float | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """An approval that a release asked for, as ``/admin/approvals`` tells it."""

    id: str
    kind: str
    subject: str
    state: str
    lacking: int = 0

    @property
    def waits_for(self) -> str:
        """What has to be done before the release may go on; empty for nothing. Raises :class:`ReleaseError` where a
        person said no."""
        if self.state == "approved":
            return ""
        if self.state != "open":
            raise ReleaseError(f"what the release may set ({self.id}) is {self.state}, and not approved")
        return f"another person must let it set that: `ekiden approve {self.id} --reason TEXT`"


class Server(Protocol):
    """What a release needs of a server. Every method raises :class:`OutOfReach`."""

    def policy(self) -> dict[str, Told]:
        """The controls in force, by name."""

    def set(self, values: Mapping[str, Any], *, why: str, seconds: float | None) -> dict[str, Told]:
        """Change controls at the next step boundary, for so long (None: for good); returns those in force then.

        Raises :class:`ReleaseError` where the server refuses the change.
        """

    def place(self) -> Place | None:
        """Which server it is; None for one that does not say."""

    def leave(self, subject: str, values: Mapping[str, Sequence[Any]], *, why: str) -> str:
        """Ask that the release ``subject`` may give each control these values. Empty where it may; else what must be
        done first (:attr:`Asked.waits_for`). A server where one person is enough lets all of them."""

    def end_leave(self, subject: str, *, why: str) -> None:
        """The release needs to set nothing any more."""

    def ledger(self) -> LedgerReader:
        """The run that is being written, opened; the caller closes it."""


class HttpServer:
    """A :class:`Server` over HTTP. ``folder`` has the recorded runs of its engine."""

    def __init__(self, target: Target, folder: Path) -> None:
        self._target, self._folder = target, folder
        self._root = f"{target.root}".rstrip("/")
        self._client = target.client(timeout=PATIENCE)
        self._run: Path | None = None
        self._leave = ""
        """The id of the approval that was asked for."""

    def close(self) -> None:
        self._client.close()

    def policy(self) -> dict[str, Told]:
        return _policy(self._ask("GET", "/admin/policy")).controls

    def set(self, values: Mapping[str, Any], *, why: str, seconds: float | None) -> dict[str, Told]:
        body: dict[str, Any] = {"set": dict(values), "reason": why[:500]}
        if seconds is not None:
            body["expires_in_seconds"] = seconds
        return _policy(self._ask("POST", "/admin/policy", body)).controls

    def place(self) -> Place | None:
        return _policy(self._ask("GET", "/admin/policy")).server

    def leave(self, subject: str, values: Mapping[str, Sequence[Any]], *, why: str) -> str:
        if not _policy(self._ask("GET", "/admin/policy")).two_person:
            return ""
        asked = next((each for each in self._approvals() if each.id == self._leave), None)
        if asked is None:
            body = {"action": "open", "kind": _RELEASE, "subject": subject, "reason": why[:500], "values": values}
            asked = _decoded(self._ask("POST", "/admin/approvals", body), Asked)
            self._leave = asked.id
        return asked.waits_for

    def end_leave(self, subject: str, *, why: str) -> None:
        if not _policy(self._ask("GET", "/admin/policy")).two_person:
            return
        for each in self._approvals():
            if (each.kind, each.subject) == (_RELEASE, subject) and each.state in ("open", "approved"):
                self._ask("POST", "/admin/approvals", {"action": "withdraw", "id": each.id, "reason": why[:500]})

    def _approvals(self) -> list[Asked]:
        return _decoded(self._ask("GET", "/admin/approvals"), _Approvals).approvals

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
    two_person: bool = False
    server: Place | None = None


class _Approvals(msgspec.Struct):
    approvals: list[Asked]


def _policy(content: bytes) -> _Policy:
    return _decoded(content, _Policy)


def _decoded(content: bytes, kind: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise OutOfReach(f"the server did not answer as one of this version does: {error}") from error
