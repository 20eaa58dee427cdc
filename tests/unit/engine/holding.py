"""Holds up engines in processes of their own, so that a test can act while one is at work, or while there is none,
however slow or quick the machine is."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

HOLD_FILE = "EKIDEN_TEST_HOLD"
"""An environment variable that names a file: while that exists, engines whose makers ask here are not made."""


def wait_to_be_made() -> None:
    """Called in the engine's process."""
    path = os.environ.get(HOLD_FILE)
    while path and os.path.exists(path):
        time.sleep(0.01)


@contextmanager
def no_engine_comes_up() -> Iterator[None]:
    """Around the end of an engine and what is to happen before the next one is there, which is made afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "hold")
        file.touch()
        with patch.dict(os.environ, {HOLD_FILE: str(file)}):
            yield


SLOW_FILE = "EKIDEN_TEST_SLOW"
"""An environment variable that names a file: while that exists, a step of engines that ask here takes long."""


def take_time(step: int) -> None:
    """Called in the engine's process before each step."""
    path = os.environ.get(SLOW_FILE)
    if path and os.path.exists(path):
        time.sleep(0.05)


@contextmanager
def slow_steps() -> Iterator[Callable[[], None]]:
    """Engines that are started inside are slow, so that none comes to an end of its work before the test has acted on
    it, until the function that is given is called."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "slow")
        file.touch()
        with patch.dict(os.environ, {SLOW_FILE: str(file)}):
            yield lambda: file.unlink(missing_ok=True)
