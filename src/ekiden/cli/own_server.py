"""A server of our own in a child process, for a command that was given no ``--url``."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ekiden.build.config_sources import PREFIX, Resolved, all_settings
from ekiden.config import Config
from ekiden.errors import UserError

STOP_SECONDS = 20.0
_READY = re.compile(r"^Ekiden is ready on (\S+)", re.MULTILINE)
_INFO_LINE = re.compile(r"^INFO .*\n", re.MULTILINE)


@contextmanager
def own_server(config: Config, *flags: str) -> Iterator[str]:
    """Start ``ekiden serve`` with ``config`` on a free loopback port, yield its address, and stop it again.

    ``flags`` are those of its section ``server``, which ``config`` does not decide.

    What it warned of before it was ready goes to standard error. Ctrl-C does not reach it. Raises :class:`UserError`
    with its last words when it ends before it is ready.
    """
    others = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    command = [sys.executable, "-m", "ekiden", "serve", "--host", "127.0.0.1", "--port", "0", *flags]
    with tempfile.NamedTemporaryFile(prefix="ekiden-server-", suffix=".log") as log:
        server = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env=others | _variables(config), start_new_session=True,
        )  # fmt: skip
        try:
            with ending_in_order():
                yield _address(server, Path(log.name))
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


@contextmanager
def ending_in_order() -> Iterator[None]:
    """When the command is told to end, what it has started ends too."""
    before = {number: signal.signal(number, lambda *_: sys.exit(1)) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def refuse_server_settings(resolved: Resolved) -> None:
    """--batching and the like cannot reach into a server that is running already."""
    ours = ("engine.seed", "model.model")
    given = [source for key, source in resolved.sources.items() if source.startswith("--") and key not in ours]
    if given:
        raise UserError(f"{', '.join(given)} cannot be set on the server behind --url; start it with them instead")


def _variables(config: Config) -> dict[str, str]:
    """``config`` as EKIDEN_ variables, without the sections of the server and of its guard: nobody is to be paged for a
    bench or a chat."""
    values = {
        setting.variable: setting.of(config) for setting in all_settings() if setting.room not in ("server", "guard")
    }
    return {name: "" if value is None else str(value) for name, value in values.items()}


def _address(server: "subprocess.Popen[bytes]", log: Path) -> str:
    """Where the server listens, once it is ready."""
    while True:
        status = server.poll()
        written = log.read_text(encoding="utf-8", errors="replace")
        if ready := _READY.search(written):
            click.echo(_INFO_LINE.sub("", written[: ready.start()]), nl=False, err=True)
            return ready[1]
        if status is not None:
            words = written.split("\n") if written.strip() else ["it said nothing"]
            last = next(line for line in reversed(words) if line.strip())
            raise UserError(f"the server ended with status {status}: {last.removeprefix('ekiden: error: ')}")
        time.sleep(0.05)
