"""Models of these tests take no more than their worker's share of the cores."""

import numpy as np
import pytest

from ekiden.backends.openvino.runner import OpenVINORunner
from ekiden.models.resolve import ModelFiles
from tests.backends.driving import LENGTH, load
from tests.model_threads import model_threads

__all__ = ["model_threads"]


@pytest.fixture(scope="session")
def runner(smollm2_files: ModelFiles) -> OpenVINORunner:
    """One for all tests that only compute with it."""
    return load(smollm2_files)


@pytest.fixture(scope="session")
def prompt() -> list[int]:
    tokens: list[int] = np.random.default_rng(3).integers(5, 49_000, LENGTH).tolist()
    return tokens
