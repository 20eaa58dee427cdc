"""A lean HTTP/1.1 client for streamed completions, for a load generator that shares its cores with the server.

Rules:
- one connection carries one request at a time and is kept alive between requests;
- nothing is parsed per token: a regular expression counts the events with non-empty content, and a time stamp is taken
  once per read. The usage object is parsed once, at the end of the answer;
- any ending but a whole answer is a failure with a short kind: ``http_<status>``, ``error_event``, ``truncated``,
  ``timeout``, ``connect``.
"""

import asyncio
import json
import re
import ssl
import time
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from ekiden.errors import UserError
from ekiden.evaluation.metrics import RequestRecord

# Unescaped quotes, so that the same words inside generated text do not match.
_CONTENT = re.compile(rb'"(?:text|content)": ?"(?!")')
_ERROR = re.compile(rb'(?:^|\n)data: ?\{"error"')
_DONE = re.compile(rb"(?:^|\n)data: ?\[DONE\]")
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_TAIL_BYTES = 4096


class TargetError(UserError, ValueError):
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
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise TargetError(f"url is {url!r}: {error}") from error
        path = parts.path.rstrip("/")
        if not path.endswith("/v1"):
            path += "/v1"
        return cls(host=parts.hostname, port=port, path=path, tls=parts.scheme == "https", api_key=api_key)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.path}"

    def request_bytes(self, route: str, payload: dict[str, Any]) -> bytes:
        """The whole POST for one streamed request, made ahead of time."""
        body = json.dumps(payload, separators=(",", ":")).encode()
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"POST {self.path}{route} HTTP/1.1",
            f"Host: {host}:{self.port}",
            "Content-Type: application/json",
            "Accept: text/event-stream",
            f"Content-Length: {len(body)}",
        ]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class Connection(asyncio.Protocol):
    """One kept-alive connection. Call :meth:`ask`, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._record: RequestRecord | None = None
        self._done: asyncio.Future[None] | None = None
        self._lost = asyncio.Event()
        self._reset()

    def _reset(self) -> None:
        self._head = b""
        self._rest = b""
        self._tail = b""
        self._in_body = False
        self._status = 0
        self._chunked = False
        self._length: int | None = None
        self._received = 0
        self._keep_alive = True

    @classmethod
    async def open(cls, target: Target) -> "Connection":
        """Connect; raises OSError."""
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context() if target.tls else None
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
        assert self._done is None, "one request at a time"
        self._reset()
        self._record = record
        self._done = asyncio.get_running_loop().create_future()
        record.sent = time.monotonic()
        self._transport.write(request)
        try:
            await asyncio.wait_for(self._done, timeout)
        except TimeoutError:
            record.failure = "timeout"
            record.end = time.monotonic()
            self._keep_alive = False
        finally:
            self._done = self._record = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # TCP gives nothing else; uvloop has its own class

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        record = self._record
        if record is None:
            return
        if not self._in_body:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            # The last line break stays, so that the end of an empty chunked body is seen too.
            data = self._head[end + 2 :]
            self._parse_head(self._head[:end])
            self._received -= 2
            self._in_body = True
        self._received += len(data)
        lines = self._rest + data
        cut = lines.rfind(b"\n") + 1
        self._rest = lines[cut:]
        events = len(_CONTENT.findall(lines, 0, cut))
        if events:
            record.event_times.extend([now] * events)
        self._tail = data if len(data) >= _TAIL_BYTES else (self._tail + data)[-_TAIL_BYTES:]
        if self._ended():
            self._finish(now)

    def connection_lost(self, exc: Exception | None) -> None:
        self._keep_alive = False
        self._lost.set()
        if self._record is not None:
            self._finish(time.monotonic())

    # the answer

    def _parse_head(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ", 2)
        self._status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        for line in lines[1:]:
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip().lower()
            if name == "transfer-encoding":
                self._chunked = "chunked" in value
            elif name == "content-length" and value.isdigit():
                self._length = int(value)
            elif name == "connection":
                self._keep_alive = value != "close"

    def _ended(self) -> bool:
        if self._chunked:
            return self._tail.endswith(_LAST_CHUNK)
        return self._length is not None and self._received >= self._length

    def _finish(self, now: float) -> None:
        record, done = self._record, self._done
        assert record is not None
        record.end = now
        record.failure = self._failure()
        usage = _usage(self._tail)
        record.prompt_tokens = usage.get("prompt_tokens", 0)
        record.output_tokens = usage.get("completion_tokens", len(record.event_times))
        self._record = None
        if done is not None and not done.done():
            done.set_result(None)

    def _failure(self) -> str | None:
        if self._status != 200:
            return f"http_{self._status}" if self._status else "truncated"
        if _ERROR.search(self._tail):
            return "error_event"
        return None if _DONE.search(self._tail) else "truncated"


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
