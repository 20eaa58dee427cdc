"""Starts the engine's process. The main function is handed in by reference, so this module imports no engine."""

import multiprocessing
import signal
from collections.abc import Callable
from ctypes import Array, c_uint64
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

Words = Array[c_uint64]
NUM_WORDS = 8192
"""64-bit words that outlive the process, for :mod:`ekiden.engine.marks`."""


class Spawned(NamedTuple):
    """A process in which :func:`ekiden.engine.child.engine_main` waits for its work, our end of its pipe, and the
    memory that we share with it."""

    connection: Connection
    process: BaseProcess
    words: Words


def spawn(main: Callable[[Connection, Words], None]) -> Spawned:
    """``main`` must be importable by name in the child. The process ends when the pipe does."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    words = context.RawArray(c_uint64, NUM_WORDS)
    process = context.Process(target=_run, args=(main, theirs, words), name="ekiden-engine", daemon=True)
    process.start()
    theirs.close()
    return Spawned(ours, process, words)


def _run(main: Callable[[Connection, Words], None], connection: Connection, words: Words) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal signals the whole group; the parent decides when to stop
        signal.signal(number, signal.SIG_IGN)
    main(connection, words)
