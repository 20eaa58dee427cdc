"""Starts the engine's process. The main function is handed in by reference, so this module imports no engine.

Signals to a whole group of processes (a terminal's Ctrl-C, a service manager's end) are the parent's to act upon: it
lets answers finish first. They are held back while the process comes up, and ignored from then on. A process whose
parent is gone ends at once while it loads; later the loop of its engine notices, and ends in order.
"""

import atexit
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from ctypes import Array, c_uint64
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final, NamedTuple

from ekiden.outlets import keep_going

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_loaded = threading.Event()

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
    resource_tracker.ensure_running()  # it would let the signals through when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # which the child inherits
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    atexit.register(process.kill)  # multiprocessing would only ask it to end, and wait
    theirs.close()
    return Spawned(ours, process, words)


def _run(main: Callable[[Connection, Words], None], connection: Connection, words: Words) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    keep_going()
    threading.Thread(target=_end_with_parent, name="ekiden-orphan", daemon=True).start()
    main(connection, words)


def loaded() -> None:
    """The process has loaded its engine, whose loop now notices when the parent is gone."""
    _loaded.set()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    if not _loaded.is_set():
        os._exit(1)
