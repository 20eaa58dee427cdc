"""Engine parts with the fake model, importable by name in the engine's process."""

import os
import time

from ekiden.build.engines import build_engine
from ekiden.config import Config
from ekiden.engine.parts import BuiltEngine, EngineParts
from ekiden.models.errors import ModelError
from ekiden.state.runner import RunnerBroken
from tests.api.real_core import make_parts, make_runner
from tests.unit.engine.holding import take_time, wait_to_be_made

FAULT_FILE = "EKIDEN_TEST_FAULT"
"""An environment variable that names a file; while that exists, the next step says that the model is broken."""


def make_engine_parts(config: Config) -> EngineParts:
    fault = os.environ.get(FAULT_FILE, "")

    def before_step(step: int) -> None:
        time.sleep(0.002)
        take_time(step)
        if fault and os.path.exists(fault):
            os.unlink(fault)
            raise RunnerBroken("a fault of the test's")

    return make_parts(make_runner(before_step=before_step))


MODEL_FILE = "EKIDEN_TEST_MODEL"
"""An environment variable that names what must exist for an engine to be made."""


def make_engine_of_a_file(config: Config) -> BuiltEngine:
    if not os.path.exists(os.environ[MODEL_FILE]):
        raise ModelError("the model's file has gone")
    return make_engine(config)


def make_engine(config: Config) -> BuiltEngine:
    wait_to_be_made()
    return build_engine(make_engine_parts(config), config, record=config.ledger.ledger)
