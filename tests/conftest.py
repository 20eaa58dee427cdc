"""Fixtures that several rooms' tests share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ekiden.models.fetch import model_cache_dir
from ekiden.models.resolve import ModelFiles, resolve

# How fast examples are generated and run depends on the machine, not on the code.
settings.register_profile("ekiden", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ekiden")


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Servers that tests start write their ledgers here, not in the home folder."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def smollm2_files() -> ModelFiles:
    """The default model, fetched into the model cache (once for all runs) and checked against its hash."""
    return resolve("smollm2-135m", model_cache_dir(os.environ.get("EKIDEN_MODEL_CACHE")))


@pytest.fixture(scope="session")
def reference_dir() -> Path:
    """Tiny models of every family, with logits from an independent implementation."""
    return Path(__file__).parent / "reference"
