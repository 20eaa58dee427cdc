"""Runs the application: binds, starts the engine, serves, and ends in order.

A signal starts the end: no new work is taken, running answers get ``shutdown_timeout`` seconds to finish, the rest end
with an error their clients can read, and then the engine stops. A second signal ends at once. SIGHUP reads the files of
keys, limits, tenants and the guard's rules again (`rereading.py`). Requests whose head is too large or does not arrive
are refused before they reach the application. Clients that speak HTTP/1.0, as some proxies do, get streams without
chunk marks.
"""

import asyncio
import contextlib
import functools
import logging
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import Any, Final

import uvicorn
import uvloop
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ekiden.api.binding import BindError, bind, url_of
from ekiden.api.call import Origin
from ekiden.api.doors.door import Doors
from ekiden.api.errors import ApiError
from ekiden.api.flight import Flight
from ekiden.api.identity import new_id
from ekiden.api.rereading import Rereading
from ekiden.config import UNIX, Config, ServerConfig

MAX_HEAD_BYTES: Final = 64 * 1024
"""Largest request line and headers together."""

HEAD_SECONDS: Final = 20.0
"""How long a request's head may take to arrive once it has begun."""

LINGER_BYTES: Final = 16 * 2**20
LINGER_SECONDS: Final = 10.0
"""How much of a body, and for how long, is read and dropped after its request was answered, so that the client can
finish sending and read the answer. Closing at once would reset the connection and lose the answer."""

BACKSTOP_SECONDS: Final = 5.0
"""How long after ``shutdown_timeout`` open connections are closed by force."""

Hook = Callable[[], Awaitable[None]]

logger = logging.getLogger(__name__)


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on a request's head, and its own refusals in JSON.

    ``note`` has a refusal recorded.
    """

    def __init__(self, *arguments: Any, note: Callable[[Origin, ApiError], None], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._note = note
        self._head_bytes = 0
        self._in_head = True
        self._timer: asyncio.TimerHandle | None = None  # of the head, or of lingering
        self._lingered: int | None = None
        self._refused = False

    def data_received(self, data: bytes) -> None:
        if self._lingered is not None:
            self._lingered += len(data)
            if self._lingered > LINGER_BYTES:
                self.transport.abort()
        if self._refused or self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._timer is None:
                self._timer = self.loop.call_later(HEAD_SECONDS, self._head_late)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            message = f"The headers are larger than {MAX_HEAD_BYTES} bytes."
            self._refuse(ApiError(431, message, code="headers_too_large"))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()
        if self.scope.get("http_version") == "1.0" and self.cycle is not None:
            _speak_http_1_0(self.cycle)

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self._in_head and self._lingered is None:
            # The response came before the whole body was read, as with 413.
            self._linger()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, msg, code="invalid_http"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._lingered = None

    def _linger(self) -> None:
        self._timer, self._lingered = self.loop.call_later(LINGER_SECONDS, self.transport.abort), 0

    def _head_late(self) -> None:
        message = f"The headers did not arrive within {HEAD_SECONDS:g} seconds."
        self._refuse(ApiError(408, message, code="headers_timeout"))

    def _refuse(self, error: ApiError) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        lingers = self._lingered is not None
        if not lingers:
            self._stop_timer()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self._in_head:
                # The error is in what follows a request that is being answered: finish that answer, then close.
                cycle.keep_alive = False
                return
            if cycle.response_started:
                self.transport.close()
                return
        origin = Origin(request_id=new_id(), arrival_time=time.monotonic(), created=int(time.time()))
        body = error.body()
        self._note(origin, error)
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n"
            b"x-ekiden-request-id: %s\r\n\r\n%s"
            % (error.status, HTTPStatus(error.status).phrase.encode(), len(body), origin.request_id.encode(), body)
        )
        if self._in_head and not lingers and self.transport.can_write_eof():
            # Further input is dropped. Closing at once would reset the connection of a client that is still
            # sending, and the client would lose the answer.
            self.transport.write_eof()
            self._linger()
        else:
            self.transport.close()


def _speak_http_1_0(cycle: RequestResponseCycle) -> None:
    """HTTP/1.0 knows neither chunks nor "100 Continue": an answer of unknown length is plain bytes, and ends when the
    connection is closed. uvicorn closes it after every answer to such a client, but marks chunks for all."""
    cycle.waiting_for_100_continue = False
    send, plain = cycle.send, False

    async def send_plain(message: Any) -> None:
        nonlocal plain
        if message["type"] == "http.response.start":
            plain = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if plain:
                cycle.chunked_encoding = False
        elif plain:
            cycle.expected_content_length = len(message.get("body", b""))  # uvicorn checks what was announced
        await send(message)

    cycle.send = send_plain  # type: ignore[method-assign]  # it is handed to the application, which begins later


class Server(uvicorn.Server):
    """uvicorn's server, except that unfinished answers end with an error at shutdown."""

    def __init__(self, config: uvicorn.Config, flight: Flight, rereading: Rereading, shutdown_timeout: float) -> None:
        super().__init__(config)
        self.rereading = rereading
        self._flight = flight
        self._shutdown_timeout = shutdown_timeout

    def ask_to_stop(self) -> None:
        """Called on a signal: the first drains, the second ends at once."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._flight.draining = True
        if self.force_exit:
            self._end_live()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # serve() handles the signals itself, because it must stop the engine afterwards.
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._flight.draining = True
        timer = asyncio.get_running_loop().call_later(self._shutdown_timeout, self._end_live)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    def _end_live(self) -> None:
        if count := self._flight.cut_all():
            logger.warning("%d answers were not finished in time and end with an error", count)


def make_server(app: FastAPI, settings: ServerConfig, read_config: Callable[[], Config] | None = None) -> Server:
    """A server for ``app``, for :func:`serve` and for tests."""
    doors: Doors = app.state.doors
    config = uvicorn.Config(
        app,
        http=functools.partial(LimitedProtocol, note=doors.note_refusal),  # type: ignore[arg-type]  # it is only called
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=settings.log_level,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.shutdown_timeout + BACKSTOP_SECONDS),
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
    )
    rereading = Rereading(doors, app.state.keys, app.state.config, read_config, app.state.guard)
    return Server(config, doors.generation.flight, rereading, settings.shutdown_timeout)


def serve(
    make_app: Callable[[], FastAPI],
    settings: ServerConfig,
    *,
    start: Hook,
    stop: Hook,
    read_config: Callable[[], Config] | None = None,
    hurry: Callable[[], None] = lambda: None,
) -> int:
    """Serve until a signal; returns the exit status: 0 done, 2 the address cannot be bound.

    The address is bound first, so that a port in use is told before a model is loaded. Then ``start`` brings the engine
    up on the loop, ``make_app`` builds the application over it, a line on standard output tells the URL, and ``stop``
    ends the engine, whatever happened before. Errors of ``start`` are the caller's. ``read_config`` reads the settings
    again on SIGHUP. ``hurry`` is called at the second signal, so that ``stop`` waits for nothing any more.
    """
    try:
        listener = bind(settings.host, settings.port)
    except BindError as error:
        print(f"ekiden: {error}", file=sys.stderr)
        return 2

    def make() -> Server:
        server = make_server(make_app(), settings, read_config)
        url = url_of(listener, tls=settings.ssl_certfile is not None)
        print(f"Ekiden is ready on {url} ({_where(url)})", flush=True)
        return server

    with contextlib.closing(listener), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(listener, make, start, stop, hurry))
    return 0


def _where(url: str) -> str:
    if url.startswith(UNIX):
        return f"try: curl --unix-socket {url.removeprefix(UNIX)} http://localhost/v1/models"
    return f"API under {url}/v1, docs under {url}/docs"


async def _run(
    listener: socket.socket, make: Callable[[], "Server"], start: Hook, stop: Hook, hurry: Callable[[], None]
) -> None:
    loop = asyncio.get_running_loop()
    server: Server | None = None
    starting = asyncio.ensure_future(start())
    asked = 0

    def on_signal() -> None:
        nonlocal asked
        asked += 1
        if server is None:
            starting.cancel()
        else:
            server.ask_to_stop()
        if asked > 1:
            hurry()

    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # until there is an application to read anything for
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        await starting
        server = make()
        loop.add_signal_handler(signal.SIGHUP, server.rereading.begin)
        await server.serve(sockets=[listener])
    except asyncio.CancelledError:
        if server is not None:
            raise
    finally:
        await stop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
