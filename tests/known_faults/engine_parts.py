"""The model without weights for an engine process of its own; importable by name there."""

import os
import time

from ekiden.build.engines import build_engine
from ekiden.config import Config
from ekiden.engine.parts import BuiltEngine, EngineParts
from tests.api.real_core import make_parts, make_runner

FAULT_FILE = "EKIDEN_TEST_FAULT"
"""A variable that names a file; while it exists, the next step meets an error that nobody expects."""


def make_engine_parts(config: Config) -> EngineParts:
    fault = os.environ.get(FAULT_FILE, "")

    def before_step(step: int) -> None:
        time.sleep(0.002)
        if fault and os.path.exists(fault):
            os.unlink(fault)
            raise ZeroDivisionError("a fault of the test's")

    return make_parts(make_runner(before_step=before_step))


def make_engine(config: Config) -> BuiltEngine:
    return build_engine(make_engine_parts(config), config, record=config.ledger.ledger)
