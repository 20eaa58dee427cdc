"""A server of our own in a child process, for a bench that was given none."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ekiden.build.config_sources import PREFIX, all_settings
from ekiden.config import Config
from ekiden.errors import UserError

START_SECONDS = 180.0
STOP_SECONDS = 20.0


@contextmanager
def own_server(config: Config) -> Iterator[str]:
    """Start ``ekiden serve`` with ``config`` on a free loopback port, yield its address, and stop it again.

    Raises :class:`UserError` with the server's last words when it does not become ready.
    """
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="ekiden-bench-") as folder:
        log = Path(folder) / "server.log"
        settings = Path(folder) / "settings.toml"
        settings.write_text(_toml(config), encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        command = [sys.executable, "-m", "ekiden", "serve", "--config", str(settings)]
        with log.open("wb") as sink:
            server = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [*command, "--host", "127.0.0.1", "--port", str(port)], stdout=sink, stderr=sink, env=environment
            )
        try:
            _wait_until_ready(server, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


def _toml(config: Config) -> str:
    """``config`` as a settings file; settings without a value are left out."""
    lines: dict[str, list[str]] = {}
    for setting in all_settings():
        value = getattr(getattr(config, setting.room), setting.name)
        if value is not None and setting.room != "server":
            lines.setdefault(setting.room, []).append(f"{setting.name} = {json.dumps(value)}")
    return "\n".join(f"[{room}]\n" + "\n".join(values) for room, values in lines.items()) + "\n"


def _wait_until_ready(server: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise UserError(f"the server ended with status {server.returncode}: {_last_words(log)}")
        try:
            with urllib.request.urlopen(url, timeout=2.0) as answer:  # noqa: S310 - our own loopback address
                if answer.status == 200:
                    return
        except urllib.error.HTTPError as error:
            error.close()  # it listens and is not ready
        except OSError:
            pass  # not listening yet, or still loading: looked at again in a moment
        time.sleep(0.1)
    raise UserError(f"the server was not ready after {START_SECONDS:.0f} seconds: {_last_words(log)}")


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("ekiden: error: ") if lines else "it said nothing"
