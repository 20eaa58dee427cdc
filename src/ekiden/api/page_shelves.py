"""Evaluations with their reports, and releases, on the page.

A report is opened by the browser itself, which sends no key. So its address has a ticket where the server has keys: a
signature over the report's name and the time until which it holds. The list of reports, which needs the key, gives it.
"""

import hashlib
import hmac
import html
import re
import secrets
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ekiden.api.auth import PAGE_REPORTS
from ekiden.api.errors import ApiError, not_found
from ekiden.api.page_data import PageData, PageJson
from ekiden.dashboard.ports import PagePorts

TICKET_SECONDS: Final = 600
_POLICY: Final = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)"', re.IGNORECASE)
_HEAD_BYTES: Final = 4096
"""Within which a report carries its policy."""
_NOTHING: Final = "default-src 'none'"


class PageShelves:
    def __init__(self, ports: PagePorts, data: PageData, *, now: Callable[[], float] = time.time) -> None:
        self._ports, self._data, self._now = ports, data, now
        self._secret = secrets.token_bytes(32)

    async def evaluations(self, request: Request) -> Response:
        def listed() -> list[object]:
            lines = [] if self._ports.evaluations is None else self._ports.evaluations().listed()
            addresses = [{language: self._address(name) for language, name in line.reports.items()} for line in lines]
            return [msgspec.structs.replace(line, reports=own) for line, own in zip(lines, addresses, strict=True)]

        return PageJson({"evaluations": await self._data.read(listed)})

    def _address(self, name: str) -> str:
        address = PAGE_REPORTS + quote(name)
        if not self._data.has_keys:
            return address
        until = int(self._now()) + TICKET_SECONDS
        return f"{address}?until={until}&ticket={self._ticket(name, until)}"

    def _ticket(self, name: str, until: int) -> str:
        return hmac.new(self._secret, f"{until}:{name}".encode(), hashlib.sha256).hexdigest()[:32]

    async def report(self, request: Request) -> Response:
        """A report under the policy that its own file carries."""
        name = str(request.path_params["name"])
        self._check_ticket(request, name)

        def read() -> bytes | None:
            return None if self._ports.evaluations is None else self._ports.evaluations().report(name)

        content = await self._data.read(read)
        if content is None:
            raise not_found(request.url.path)
        policy = f"{_policy_of(content)}; frame-ancestors 'none'"
        headers = {"content-security-policy": policy, "cache-control": "no-store"}
        return Response(content, media_type="text/html", headers=headers)

    def _check_ticket(self, request: Request, name: str) -> None:
        if not self._data.has_keys:
            return
        until, ticket = request.query_params.get("until", ""), request.query_params.get("ticket", "")
        held = until.isascii() and until.isdigit() and len(until) < 16 and int(until) >= self._now()
        if not held or not hmac.compare_digest(ticket.encode(), self._ticket(name, int(until)).encode()):
            message = "The address of this report holds no longer; open it from the page, where your key is."
            raise ApiError(403, message, code="ticket_over")

    async def releases(self, request: Request) -> Response:
        def listed() -> list[dict[str, Any]]:
            return [] if self._ports.releases is None else self._ports.releases().listed()

        return PageJson({"releases": await self._data.read(listed)})


def _policy_of(content: bytes) -> str:
    """What the file says that it may do; nothing where it says nothing."""
    found = _POLICY.search(content[:_HEAD_BYTES].decode("utf-8", "replace"))
    policy = _NOTHING if found is None else html.unescape(found[1])
    return policy if policy.isascii() and policy.isprintable() else _NOTHING
