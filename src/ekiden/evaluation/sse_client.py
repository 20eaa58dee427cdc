"""A lean client for streamed completions, for a load generator that shares its cores with the server.

Rules:
- httptools reads the HTTP; one connection carries one request at a time and is kept alive between requests;
- no event is parsed by itself: a regular expression counts those with non-empty content, and a time stamp is taken once
  per read. The usage object is parsed once, at the end of the answer;
- any ending but a whole answer is a failure with a short kind: ``http_<status>``, ``error_event``, ``truncated``,
  ``malformed``, ``timeout``, ``connect``.
"""

import asyncio
import json
import re
import ssl
import time
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from ekiden.measure.figures import RequestRecord

# Unescaped quotes, so that the same words inside generated text do not match.
_CONTENT = re.compile(rb'"(?:text|content)": ?"(?!")')
_ERROR = re.compile(rb'(?:^|\n)data: ?\{"error"')
_DONE = re.compile(rb"(?:^|\n)data: ?\[DONE\]")
_TAIL_BYTES = 4096


class TargetError(ValueError):
    """The address of the server under test cannot be used, or nobody answers there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server under test. ``path`` ends in /v1."""

    host: str
    port: int
    path: str
    tls: bool
    api_key: str | None = None

    @classmethod
    def parse(cls, url: str, *, api_key: str | None = None) -> "Target":
        """From ``http://host:port`` with or without ``/v1``; raises :class:`TargetError`."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TargetError(f"url is {url!r}; write it as http://127.0.0.1:8000")
        tls = parts.scheme == "https"
        try:
            port = parts.port or (443 if tls else 80)
        except ValueError as error:
            raise TargetError(f"url is {url!r}: {error}") from error
        path = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        return cls(host=parts.hostname, port=port, path=path, tls=tls, api_key=api_key)

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.path}"

    @property
    def auth_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def request_bytes(self, route: str, payload: dict[str, Any]) -> bytes:
        """The whole POST for one streamed request, made ahead of time."""
        body = json.dumps(payload, separators=(",", ":")).encode()
        headers = {
            "Host": self.authority,
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Content-Length": len(body),
            **self.auth_headers,
        }
        lines = [f"POST {self.path}{route} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class Connection(asyncio.Protocol):
    """One kept-alive connection. Call :meth:`ask`, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._record: RequestRecord | None = None
        self._done: asyncio.Future[None] | None = None
        self._lost = asyncio.Event()
        self._keep_alive = True

    @classmethod
    async def open(cls, target: Target) -> "Connection":
        """Connect; raises OSError."""
        context = ssl.create_default_context() if target.tls else None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, target.host, target.port, ssl=context)
        return connection

    @property
    def reusable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._keep_alive

    async def close(self) -> None:
        """Close the connection and wait until it is gone."""
        if self._transport is not None:
            self._transport.close()
            await self._lost.wait()

    async def ask(self, request: bytes, record: RequestRecord, *, timeout: float) -> None:
        """Send one request and fill ``record`` in until its answer has ended, well or not."""
        assert self._transport is not None, "open() connects before it returns"
        assert self._record is None, "one request at a time"
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._rest = self._tail = b""
        self._whole = self._keep_alive = False
        self._record, self._done = record, asyncio.get_running_loop().create_future()
        record.sent = time.monotonic()
        self._transport.write(request)
        try:
            await asyncio.wait_for(self._done, timeout)
        except TimeoutError:
            record.failure, record.end, self._record = "timeout", time.monotonic(), None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # TCP gives nothing else; uvloop has its own class

    def data_received(self, data: bytes) -> None:
        now, record = time.monotonic(), self._record
        if record is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._finish(now, failure="malformed")
            return
        lines = b"".join((self._rest, *self._body))
        self._body.clear()
        cut = lines.rfind(b"\n") + 1
        events = len(_CONTENT.findall(lines, 0, cut))
        if events:
            record.event_times.extend([now] * events)
        self._tail, self._rest = (self._tail + lines[:cut])[-_TAIL_BYTES:], lines[cut:]
        if self._whole:
            self._finish(now)

    def connection_lost(self, exc: Exception | None) -> None:
        self._keep_alive = False
        self._lost.set()
        if self._record is not None:
            self._finish(time.monotonic())

    # httptools

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        self._whole, self._keep_alive = True, self._parser.should_keep_alive()

    # the end of an answer

    def _finish(self, now: float, failure: str | None = None) -> None:
        record, self._record = self._record, None
        assert record is not None
        assert self._done is not None
        tail = self._tail + self._rest
        usage = _usage(tail)
        record.end, record.failure = now, failure or self._failure(tail)
        record.prompt_tokens = usage.get("prompt_tokens", 0)
        record.output_tokens = usage.get("completion_tokens", len(record.event_times))
        if not self._done.done():
            self._done.set_result(None)

    def _failure(self, tail: bytes) -> str | None:
        status = self._parser.get_status_code()
        if status not in (0, 200):
            return f"http_{status}"
        if _ERROR.search(tail):
            return "error_event"
        return None if _DONE.search(tail) else "truncated"


def _usage(tail: bytes) -> dict[str, int]:
    """The last usage object of a stream, or nothing where the server sends none."""
    for line in reversed(tail.split(b"\n")):
        if line.startswith(b"data:") and b'"usage"' in line:
            try:
                usage = json.loads(line[5:]).get("usage")
            except ValueError:
                continue
            if isinstance(usage, dict):
                return {name: value for name, value in usage.items() if isinstance(value, int)}
    return {}
