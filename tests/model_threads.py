"""How many threads a test's model may have, where several workers run tests at once."""

import os
from collections.abc import Iterator

import pytest

from ekiden.backends.openvino import machine

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


@pytest.fixture(scope="session", autouse=True)
def model_threads() -> Iterator[int]:
    """The worker's share of the cores: a model that took them all would be slower, and so would the other worker."""
    threads = max(1, machine.usable_threads() // WORKERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "usable_threads", lambda: threads)
        yield threads
