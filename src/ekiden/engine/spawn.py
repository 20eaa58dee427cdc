"""Starts the engine's process. The main function is handed in by reference, so this module imports no engine."""

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple


class Spawned(NamedTuple):
    """A process in which :func:`ekiden.engine.process.engine_main` waits for its work, and our end of its pipe."""

    connection: Connection
    process: BaseProcess


def spawn(main: Callable[[Connection], None]) -> Spawned:
    """``main`` must be importable by name in the child. The process ends when the pipe does."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(main, theirs), name="ekiden-engine", daemon=True)
    process.start()
    theirs.close()
    return Spawned(ours, process)


def _run(main: Callable[[Connection], None], connection: Connection) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal signals the whole group; the parent decides when to stop
        signal.signal(number, signal.SIG_IGN)
    main(connection)
