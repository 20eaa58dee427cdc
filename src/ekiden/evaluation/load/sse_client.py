"""A lean client for streamed completions, for a load generator that shares its cores with the server.

Rules:
- httptools reads the HTTP; one connection carries one request at a time and is kept alive between requests;
- no event is parsed by itself: a regular expression counts those with non-empty content, and a time stamp is taken once
  per read. The usage is looked for once, at the end of the answer;
- any ending but a whole answer is a failure with a short kind: ``http_<status>``, ``error_event``, ``truncated``,
  ``malformed``, ``timeout``, ``connect``;
- a kept connection that the server has closed without a word is opened anew, and its request sent again, once;
- a load goes to the server itself, whatever proxy is set: a proxy's pace is not the server's.
"""

import asyncio
import re
import time
from contextlib import suppress

import httptools

from ekiden.evaluation.load.target import Target
from ekiden.measure.figures import RequestRecord

# Unescaped quotes, so that the same words inside generated text do not match.
_CONTENT = re.compile(rb'"(?:text|content)": ?"(?!")')
_USAGE = re.compile(rb'"(prompt_tokens|completion_tokens)": ?(\d+)')
_ERROR = re.compile(rb'(?:^|\n)data: ?\{"error"')
_DONE = re.compile(rb"(?:^|\n)data: ?\[DONE\]")
_TAIL_BYTES = 4096
_READ_BYTES = 1 << 16


class Connection:
    """A connection that is kept alive from one answer to the next, and opened anew where that is not possible."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._body: list[bytes] = []
        self._whole = self._keep_alive = self._heard = False

    async def close(self) -> None:
        """Close the connection and wait until it is gone."""
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.close()
            with suppress(OSError):  # the server was faster
                await writer.wait_closed()

    def drop(self) -> None:
        """Give up the connection at once, in the middle of an answer too."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def ask(
        self, request: bytes, record: RequestRecord, *, timeout: float, body: list[bytes] | None = None
    ) -> None:
        """Send one request and fill ``record`` in until its answer has ended, well or not. One request at a time.

        ``body`` collects the answer's body in pieces, for who wants to read it afterwards.
        """
        kept = self._streams is not None
        await self._ask(request, record, timeout, body)
        if kept and record.failure == "truncated" and not self._heard:
            await self._ask(request, record, timeout, body)

    async def _ask(self, request: bytes, record: RequestRecord, timeout: float, body: list[bytes] | None) -> None:
        self._heard = False
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await self._open()
        except (OSError, TimeoutError):
            record.sent = record.end = time.monotonic()
            record.failure = "connect"
            return
        self._whole = self._keep_alive = False
        record.sent = record.sent or time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                writer.write(request)
                record.failure = await self._read_answer(reader, record, body)
        except TimeoutError:
            record.failure = "timeout"
        except httptools.HttpParserError:
            record.failure = "malformed"
        except OSError:
            record.failure = "truncated"
        record.end = time.monotonic()
        if not self._keep_alive:
            await self.close()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None:
            reader, writer = self._streams
            if reader.at_eof() or writer.is_closing():  # the server has closed it meanwhile
                await self.close()
        if self._streams is None:
            base, path = self._target.base, self._target.socket
            tls = True if base.scheme == "https" else None
            if path is not None:
                self._streams = await asyncio.open_unix_connection(path)
            else:
                self._streams = await asyncio.open_connection(base.host, base.port or (443 if tls else 80), ssl=tls)
        return self._streams

    async def _read_answer(
        self, reader: asyncio.StreamReader, record: RequestRecord, body: list[bytes] | None
    ) -> str | None:
        """The kind of failure, or None for a whole answer."""
        self._parser = httptools.HttpResponseParser(self)
        tail = rest = b""
        while not self._whole and (data := await reader.read(_READ_BYTES)):
            now, self._heard = time.monotonic(), True
            self._body.clear()
            self._parser.feed_data(data)
            if body is not None:
                body += self._body
            lines = b"".join((rest, *self._body))
            cut = lines.rfind(b"\n") + 1
            record.event_times += [now] * len(_CONTENT.findall(lines, 0, cut))
            tail, rest = (tail + lines[:cut])[-_TAIL_BYTES:], lines[cut:]
        tail += rest
        usage = {name: int(count) for name, count in _USAGE.findall(tail)}
        record.prompt_tokens = usage.get(b"prompt_tokens", 0)
        record.output_tokens = usage.get(b"completion_tokens", len(record.event_times))
        status = self._parser.get_status_code()
        if status not in (0, 200):
            return f"http_{status}"
        if _ERROR.search(tail):
            return "error_event"
        return None if _DONE.search(tail) else "truncated"

    # called by httptools

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        self._whole, self._keep_alive = True, self._parser.should_keep_alive()
