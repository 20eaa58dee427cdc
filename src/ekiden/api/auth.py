"""Who may call: a key for everything but the probes, and a key of scope ``admin`` for ``/admin``.

A key comes as ``Authorization: Bearer <key>`` or, as Anthropic's clients send it, as ``x-api-key``. Where none is
stored, everything but ``/admin`` is open (and the address is a loopback one: :func:`check_bind`). Without a key of
scope ``admin`` there is nothing at ``/admin`` at all. Reading needs any key; what computes needs scope ``inference``.
The page at ``/`` holds no data and is open; its data need scope ``admin``.
"""

from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ekiden.api import keys
from ekiden.api.asgi import ErrorResponse
from ekiden.api.errors import ApiError, invalid, not_found, shown
from ekiden.api.keys import TENANT_NAME, TENANT_RULE, KeyStore, Principal
from ekiden.config import ConfigError, ServerConfig, is_loopback, unix_path
from ekiden.state.request import DEFAULT_TENANT

OPEN_PATHS: Final = frozenset({"/health", "/ready"})
ADMIN_PATH: Final = "/admin/"
PAGE_FILES: Final = "/dashboard/"
PAGE_DATA: Final = "/dashboard/data/"
PAGE_REPORTS: Final = "/dashboard/reports/"

PRINCIPAL: Final = "ekiden.principal"
"""Key of the caller's :class:`Principal` in the ASGI scope; absent on a server without keys."""
_NOBODY: Final = Principal(name=None)


class ApiKeyMiddleware:
    """Answers 401 to a request without a stored key, and 403 to one whose key lacks the scope that its path needs.

    ``refused`` is told of each.
    """

    def __init__(self, app: ASGIApp, store: KeyStore, refused: Callable[[Scope, ApiError], None]) -> None:
        self._app = app
        self._store = store
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        self._store.refresh()
        try:
            scope[PRINCIPAL] = self._admitted(scope)
        except ApiError as error:
            self._refused(scope, error)
            await ErrorResponse(scope["path"], error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _admitted(self, scope: Scope) -> Principal:
        """The caller; raises :class:`ApiError` for one that may not do this."""
        principal = self._principal(scope)
        if principal is None:
            message = (
                "This server needs an API key: send the header 'Authorization: Bearer <key>' or 'x-api-key: <key>'."
            )
            raise ApiError(401, message, code="invalid_api_key", headers=((b"www-authenticate", b"Bearer"),))
        if scope["path"].startswith(PAGE_DATA) and keys.Scope.ADMIN not in principal.scopes:
            message = (
                "The page's data need a key of scope 'admin', and this one has only 'inference'; make one with "
                "`ekiden keys new NAME --scope admin`, and start the server with --api-keys-file."
            )
            raise ApiError(403, message, code="insufficient_scope")
        admin = scope["path"].startswith(ADMIN_PATH)
        if admin and not self._store.has_admin:
            raise not_found(scope["path"])
        needed = keys.Scope.ADMIN if admin else keys.Scope.INFERENCE
        if (admin or scope["method"] == "POST") and needed not in principal.scopes:
            message = f"This API key does not have the scope {needed.value!r}."
            raise ApiError(403, message, code="insufficient_scope")
        return principal

    def _principal(self, scope: Scope) -> Principal | None:
        headers = Headers(scope=scope)
        bearer, plain = headers.getlist("authorization"), headers.getlist("x-api-key")
        if len(bearer) > 1 or len(plain) > 1 or any(not value.startswith("Bearer ") for value in bearer):
            return None
        given = {*(value.removeprefix("Bearer ") for value in bearer), *plain}
        return self._store.find(given.pop().encode("latin-1")) if len(given) == 1 else None


def _is_open(path: str) -> bool:
    page = path == "/" or (path.startswith(PAGE_FILES) and not path.startswith(PAGE_DATA))
    return page or path in OPEN_PATHS


def is_admin(scope: Scope) -> bool:
    """Whether the caller has a key of scope ``admin``; on a server without keys nobody has."""
    principal: Principal | None = scope.get(PRINCIPAL)
    return principal is not None and keys.Scope.ADMIN in principal.scopes


def require_admin(scope: Scope) -> Principal:
    """The caller of an ``/admin`` route. Raises 404 without a key of scope ``admin``, even without middleware."""
    if not is_admin(scope):
        raise not_found(scope["path"])
    principal: Principal = scope[PRINCIPAL]
    return principal


def tenant_of(scope: Scope, tenant_header: str | None) -> str:
    """The tenant whose share and limits a request counts against: the key's tenant, else the configured header, else
    the key's name, else the default. Raises :class:`ApiError` 400 for a header that is not a tenant's name."""
    principal: Principal = scope.get(PRINCIPAL, _NOBODY)
    if principal.tenant is not None:
        return principal.tenant
    if tenant_header is not None:
        values = Headers(scope=scope).getlist(tenant_header)
        if values:
            tenant = values[0]
            if len(values) > 1 or not TENANT_NAME.fullmatch(tenant):
                raise invalid(tenant_header, f"{tenant_header} is {shown(tenant)}; it must be {TENANT_RULE}, once.")
            return tenant
    return principal.name or DEFAULT_TENANT


def check_bind(server: ServerConfig) -> None:
    """Raise :class:`ConfigError` when the address would open the server to the network without a key."""
    if server.api_key or server.api_keys_file or is_loopback(server.host) or unix_path(server.host) is not None:
        return  # a socket's file opens for our own user alone
    raise ConfigError(
        f"host is {server.host!r}, which other machines can reach, and no API key is set; set one with --api-key KEY "
        "(or EKIDEN_API_KEY), or keys with --api-keys-file FILE, or bind to 127.0.0.1"
    )
