"""The API key: a bearer token compared in constant time. ``/health`` and ``/ready`` stay open for probes.

Keys are compared as digests of their bytes, so neither length nor content nor an odd character shows in the time or
breaks the comparison. Keys are never logged and never part of an error.
"""

import hashlib
import hmac
import ipaddress
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from ekiden.api.errors import ApiError
from ekiden.api.responses import send_error
from ekiden.config import ConfigError

OPEN_PATHS: Final = frozenset({"/health", "/ready"})


class ApiKeyMiddleware:
    """Refuses with 401 whoever does not send ``Authorization: Bearer <key>``."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._digest = _digest(api_key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._allowed(scope):
            await self._app(scope, receive, send)
            return
        await send_error(send, _refusal())

    def _allowed(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1 or not given[0].startswith(b"Bearer "):
            return False
        return hmac.compare_digest(_digest(given[0][len(b"Bearer ") :]), self._digest)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _refusal() -> ApiError:
    return ApiError(
        401,
        "This server needs an API key: send the header 'Authorization: Bearer <key>'.",
        code="invalid_api_key",
        headers=((b"www-authenticate", b"Bearer"),),
    )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_bind(host: str, api_key: str | None) -> None:
    """Raise :class:`ConfigError` when ``host`` would open the server to the network without a key."""
    if api_key or is_loopback(host):
        return
    raise ConfigError(
        f"host is {host!r}, which other machines can reach, and no API key is set; set one with --api-key KEY "
        "(or EKIDEN_API_KEY), or bind to 127.0.0.1"
    )
