"""Where the server is that a command speaks to, and how it is reached.

A server on this machine (a loopback address, a socket's file) is asked directly. Any other is asked through the proxy
that the environment names (``http_proxy``, ``https_proxy``, ``all_proxy``), unless ``no_proxy`` excepts it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx

from ekiden.config import UNIX, is_loopback, unix_path
from ekiden.errors import UserError

_HIGHEST_PORT = 65_535


class TargetError(UserError, ValueError):
    """The address of a server cannot be used, or nobody answers there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server that a command speaks to."""

    base: httpx.URL
    """It ends in /v1."""
    api_key: str | None = None
    socket: str | None = None
    """The socket's file, for a server that listens on one."""

    @classmethod
    def parse(cls, url: str, *, api_key: str | None = None) -> "Target":
        """From ``http://host:port`` with or without ``/v1``, or ``unix:/path``; raises :class:`TargetError`."""
        if (path := unix_path(url)) is not None:
            return cls(base=httpx.URL("http://localhost/v1"), api_key=api_key, socket=path)
        try:
            base = httpx.URL(url if "://" in url else f"http://{url}")
        except httpx.InvalidURL as error:
            raise TargetError(f"url is {url!r}: {error}") from error
        if base.scheme not in ("http", "https") or not base.host or (base.port or 0) > _HIGHEST_PORT:
            raise TargetError(f"url is {url!r}; write it as http://127.0.0.1:8000")
        return cls(base=base.copy_with(path=base.path.rstrip("/").removesuffix("/v1") + "/v1"), api_key=api_key)

    @property
    def url(self) -> str:
        return str(self.base) if self.socket is None else f"{UNIX}{self.socket}{self.base.path}"

    @property
    def root(self) -> httpx.URL:
        """The base without /v1."""
        return self.base.copy_with(path=self.base.path.removesuffix("/v1"))

    @property
    def proxy(self) -> str | None:
        """The proxy that the environment names for this server."""
        if self.socket is not None or is_loopback(self.base.host) or proxy_bypass(self.base.host):
            return None
        proxies = getproxies()
        return proxies.get(self.base.scheme) or proxies.get("all")

    @property
    def through(self) -> str:
        """How messages name the proxy, without the password that its address may hold; empty where none is asked."""
        if (proxy := self.proxy) is None:
            return ""
        try:
            named = httpx.URL(proxy if "://" in proxy else f"http://{proxy}").copy_with(username=None, password=None)
        except httpx.InvalidURL:
            return " through a proxy whose address cannot be read"
        return f" through the proxy {named}"

    def client(self, **options: Any) -> httpx.Client:
        """For questions to this server, with its key. Raises :class:`TargetError` for a proxy that cannot be used."""
        # A transport of our own keeps httpx from asking the environment for a proxy.
        direct = None if self.proxy is not None else httpx.HTTPTransport(uds=self.socket)
        try:
            return httpx.Client(headers=self.auth_headers, transport=direct, **options)
        except (ImportError, ValueError, httpx.InvalidURL) as error:  # a scheme that httpx has no client for
            raise TargetError(self.no_answer(self.url, error)) from error

    def no_answer(self, url: str, error: Exception) -> str:
        """The message for a server that did not answer; it names the proxy that was asked in its place."""
        told = f"no usable answer from {url}{self.through}: {error}; is the server running?"
        return f"{told} NO_PROXY={self.base.host} asks it without the proxy" if self.through else told

    @property
    def auth_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def request_bytes(self, route: str, payload: dict[str, Any], headers: Mapping[str, str] | None = None) -> bytes:
        """The whole POST for one streamed request, made ahead of time; ``headers`` are added to those it needs."""
        body = json.dumps(payload, separators=(",", ":")).encode()
        all_headers = {
            "Host": self.base.netloc.decode(),
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Content-Length": len(body),
            **self.auth_headers,
            **(headers or {}),
        }
        lines = [f"POST {self.base.path}{route} HTTP/1.1", *(f"{name}: {value}" for name, value in all_headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
