"""Starts the server's engine process before its work is known, so that it can import what it will need.

The command imports this module first, so that imports that take time are inside its functions.
"""

import contextlib
from functools import partial
from multiprocessing.connection import Connection

from ekiden.backends.registry import check_backend, import_backend
from ekiden.config import Config
from ekiden.engine.spawn import Spawned, Words, spawn


def spawn_early(config: Config) -> Spawned:
    """Raises :class:`~ekiden.config.ConfigError` for a backend that there is not."""
    check_backend(config)
    return spawn(partial(_import_and_wait, config=config))


def _import_and_wait(connection: Connection, words: Words, config: Config) -> None:
    from ekiden.engine.child import engine_main

    with contextlib.suppress(Exception):  # loading meets the same error and reports it
        import ekiden.build.engines  # noqa: F401 - to have it imported

        import_backend(config)
    engine_main(connection, words)
