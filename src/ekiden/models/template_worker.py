"""Runs chat templates in processes of their own, where one that computes without end or eats memory can be stopped.

A template comes with a model, or from a file that somebody wrote, and may hold ``"x" * 10**9`` or nested loops. Python
cannot interrupt such an operation, and it holds up every other thread of its process. So a few small helper processes
render: each renders one conversation at a time, may take :data:`CPU_SECONDS` of processor time for it (after which the
system ends the process) and :data:`MEMORY_BYTES` of memory, and is replaced when it was ended. They end when this
process does. `docs/decisions/0016-templates-and-reasoning.md` has the alternatives and figures.
"""

import atexit
import contextlib
import marshal
import os
import queue
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Final

from ekiden.models.errors import one_line
from ekiden.models.files import whole_characters
from ekiden.models.template_program import run_template

CPU_SECONDS: Final = 2.0
"""Processor time for one rendering, of which a usual one takes a thousandth. What other programs use is not in it."""
WALL_SECONDS: Final = 60.0
"""The most that a rendering may take on a machine that is busy with other things."""
MEMORY_BYTES: Final = 2**29
MAX_CHARACTERS: Final = 2**26
"""The longest text that is taken from a template."""
WORKERS: Final = 2

_ENDING_SECONDS: Final = 30.0
"""How long a helper that has let go of its pipe may take to end. Its status tells why it did; a machine that is busy is
slow to give it."""

_MAIN: Final = "from {} import main; main({})"
_WRITTEN, _FAILED = b"w", b"f"


class RenderingError(Exception):
    """The template failed, or took too much; the text is one line."""


class _Worker:
    """One helper process, started when it is first needed."""

    def __init__(self) -> None:
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None

    def start(self) -> Connection:
        if self._running is not None and self._running[0].poll() is not None:
            self.end()  # something killed it while it was idle
        if self._running is None:
            ours, theirs = Pipe()
            with contextlib.closing(theirs):
                # A fresh interpreter: a copy of this process would share its memory and connections.
                process = subprocess.Popen(  # noqa: S603 (the program is our own)
                    [sys.executable, "-P", "-c", _MAIN.format(__name__, theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    env=_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
            self._running = process, ours
        return self._running[1]

    def ask(self, question: bytes, *, again: bool = True) -> bytes:
        """The worker's reply. Raises :class:`RenderingError` when it has none; the worker is then another.

        When it was killed from outside, which no limit of ours does, another one is asked once.
        """
        connection = self.start()
        try:
            connection.send_bytes(question)
            if connection.poll(WALL_SECONDS):
                return connection.recv_bytes()
        except (OSError, EOFError):
            status = self.end(patience=_ENDING_SECONDS)
            if status == -signal.SIGKILL and again:
                return self.ask(question, again=False)
            limited = status == -signal.SIGPROF
            why = f"it took more than {CPU_SECONDS:g} s of processor time" if limited else "its process was ended"
            raise RenderingError(why) from None
        self.end()
        raise RenderingError(f"it took more than {WALL_SECONDS:g} s")

    def end(self, patience: float = 0.5) -> int:
        """End the process, if there is one, and return its exit status: its own, if it ends by itself before the
        patience with it does."""
        if self._running is None:
            return 0
        (process, connection), self._running = self._running, None
        connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        process.kill()
        return process.wait()


def _environment() -> dict[str, str]:
    """What a worker needs to run and to tell the local time, and no secrets."""
    names = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_TIME", "TZ")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


_idle: Final = queue.LifoQueue[_Worker]()
for _ in range(WORKERS):
    _idle.put(_Worker())


def start_worker() -> None:
    """Start one worker now, so that the first conversation need not wait for it."""
    worker = _idle.get()
    worker.start()
    _idle.put(worker)


@atexit.register
def end_workers() -> None:
    """End the workers that are idle; new ones are started when they are needed."""
    for worker in [_idle.get() for _ in range(_idle.qsize())]:
        worker.end()
        _idle.put(worker)


def render_apart(source: str, variables: Mapping[str, Any], now: datetime) -> str:
    """What the template ``source`` writes with ``variables``, which hold plain values; waits for a free worker.

    Raises:
        RenderingError: the template failed, or took too much time or memory.
    """
    try:
        question = marshal.dumps((CPU_SECONDS, source, dict(variables), now.isoformat()))
    except ValueError as error:
        raise RenderingError(one_line(error)) from error  # nested too deeply
    worker = _idle.get()
    try:
        reply = worker.ask(question)
    finally:
        _idle.put(worker)
    text = reply[1:].decode("utf-8", "replace")
    if reply[:1] != _WRITTEN:
        raise RenderingError(text)
    return text


def main(handle: int) -> None:
    """What a worker does: it answers each question until the pipe ends, or until it took too long."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # it ends when the process that started it does
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with Connection(handle) as connection, contextlib.suppress(EOFError, OSError):
        while True:
            seconds, *work = marshal.loads(connection.recv_bytes())  # noqa: S302 (from the process that started this)
            signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process
            reply = _reply(*work)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send_bytes(reply)


def _reply(source: str, variables: dict[str, Any], now: str) -> bytes:
    try:
        text = run_template(source, variables, datetime.fromisoformat(now))
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"it writes more than {MAX_CHARACTERS:,} characters")
        return _WRITTEN + _encoded(text)
    except MemoryError:
        return _FAILED + f"it takes more than {MEMORY_BYTES // 2**20} MiB of memory".encode()
    except Exception as error:  # noqa: BLE001 (a template is a program and can raise anything)
        return _FAILED + _encoded(one_line(error))


def _encoded(text: str) -> bytes:
    """As UTF-8; a template may write half a character."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return whole_characters(text).encode()
