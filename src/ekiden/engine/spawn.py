"""Starts the engine's process before its work is known, so that it can import what it will need meanwhile.

This module is imported before all others of a start, so it imports none of them.
"""

import contextlib
import importlib
import multiprocessing
import signal
from collections.abc import Iterable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple


class Spawned(NamedTuple):
    """A process that waits for what :func:`ekiden.engine.process.engine_main` takes, and our end of its pipe."""

    connection: Connection
    process: BaseProcess


def spawn_engine(needed: Iterable[str] = ()) -> Spawned:
    """``needed``: modules to import meanwhile. The process ends when the pipe does."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_wait_for_work, args=(theirs, tuple(needed)), name="ekiden-engine", daemon=True)
    process.start()
    theirs.close()
    return Spawned(ours, process)


def _wait_for_work(connection: Connection, needed: tuple[str, ...]) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # these go to the whole group of a terminal; the parent decides
        signal.signal(number, signal.SIG_IGN)
    engine = importlib.import_module("ekiden.engine.process")
    with contextlib.suppress(Exception):  # loading meets it again, and tells
        for module in needed:
            importlib.import_module(module)
    try:
        make_parts, config = connection.recv()
    except EOFError:
        return  # the parent found that there is nothing to serve
    engine.engine_main(connection, make_parts, config)
