"""Who may read the page and its data: the middleware of the paths ``/``, ``/dashboard/`` and ``/admin/``.

- The page itself holds no data: it needs no key, and a link to it may come from anywhere.
- Its data are for the page alone: what a browser sends for another site's page is refused, whatever key it carries.
- On a server without keys the data are open on the loopback address. So that no site can have its own name point there
  and read them (DNS rebinding), such a server answers only where it is asked by a name of the loopback address.
- Another site's page cannot act: at ``/admin/`` it is refused unless its origin is one of ``cors_origins``, and it
  would need the key, which no browser sends by itself.

Every answer carries a policy that forbids scripts, styles and requests other than the server's own.
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ekiden.api.asgi import ErrorResponse
from ekiden.api.auth import ADMIN_PATH, PAGE_DATA, PAGE_FILES, PAGE_REPORTS
from ekiden.api.errors import ApiError, shown
from ekiden.api.identity import RESPONSE_HEADERS
from ekiden.api.keys import KeyStore
from ekiden.config import ServerConfig, unix_path

PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class PageAccessMiddleware:
    """Answers 403 to what is not for the page, and puts its headers on what is."""

    def __init__(self, app: ASGIApp, server: ServerConfig, keys: KeyStore) -> None:
        self._app, self._keys = app, keys
        self._origins = server.cors_origin_list
        self._names_matter = not keys.required and unix_path(server.host) is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        page = path == "/" or path.startswith(PAGE_FILES)
        if scope["type"] != "http" or not (page or path.startswith(ADMIN_PATH)):
            await self._app(scope, receive, send)
            return
        if page:
            scope[RESPONSE_HEADERS].extend(_HEADERS)
            if not path.startswith(PAGE_REPORTS):  # a report has a policy of its own
                scope[RESPONSE_HEADERS].append((b"content-security-policy", PAGE_POLICY.encode()))
        try:
            self._check(path, Headers(scope=scope), page)
        except ApiError as error:
            await ErrorResponse(path, error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, path: str, headers: Headers, page: bool) -> None:
        if page and self._names_matter:
            check_host(headers.get("host"))
        if path.startswith(PAGE_DATA):
            check_origin(headers)
        elif not page:
            check_origin(headers, self._origins)


def check_host(host: str | None) -> None:
    """Raise :class:`ApiError` 403 for a name that is not one of the loopback address. No browser leaves it out."""
    if host is None:
        return
    if not _is_loopback(host):
        message = (
            f"The page was asked for as {shown(host)}. Without API keys this server shows it only by a name of the "
            "loopback address, such as http://localhost; give the server keys (--api-keys-file) to use others."
        )
        raise ApiError(403, message, code="wrong_host")


def check_origin(headers: Headers, allowed: tuple[str, ...] = ()) -> None:
    """Raise :class:`ApiError` 403 for what a browser sends for a page of another origin than the server's own.

    ``allowed``: other origins that may; ``*`` for all.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if site == "same-origin" or "*" in allowed or (origin is not None and origin in allowed):
        return
    try:
        ours = origin is None or (bool(urlsplit(origin).netloc) and urlsplit(origin).netloc == headers.get("host"))
    except ValueError:
        ours = False
    if not ours or site not in (None, "none"):
        message = f"This is not for pages of other sites (origin {shown(origin or site)}); open the server's own page."
        raise ApiError(403, message, code="cross_site")


def _is_loopback(host: str) -> bool:
    """Whether a ``Host`` names this machine to itself."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
