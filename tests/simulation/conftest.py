"""The engine's log is left out: the worlds are full of faults, and each would be written with its traceback."""

import logging

import pytest


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="ekiden")
