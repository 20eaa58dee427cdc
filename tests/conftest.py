"""Fixtures that several rooms' tests share, and what each test needs, as markers.

No test is marked by hand: its folder and its fixtures say what it needs. ``make test-fast`` leaves out what is marked.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ekiden.models.fetch import model_cache_dir
from ekiden.models.resolve import ModelFiles, resolve

# How fast examples are generated and run depends on the machine, not on the code. The test command draws the same
# examples each time, so that the same commit gets the same answer; `make soak` draws new ones (SOAK_EXAMPLES).
settings.register_profile(
    "ekiden",
    deadline=None,
    derandomize="SOAK_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ekiden")

TESTS = Path(__file__).parent
FOLDERS = {"backends": "model", "endtoend": "model", "clients": "program", "fuzz": "program", "browser": "program"}
FIXTURES = {"smollm2_files": "model"}
LONG = {
    "test_engines.py", "test_draw.py", "test_health.py", "test_replay.py", "test_noted_refusals.py", "test_live.py",
    "test_programs.py", "test_serve_ends.py", "test_phases.py",
}  # fmt: skip
"""Files of several seconds; those of the end-to-end tests take longer still."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A folder of tests that are left out is not even read: importing a model's kernels and clients takes seconds."""
    need = FOLDERS.get(collection_path.name)
    return True if need is not None and f"not {need}" in config.option.markexpr else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by what it needs; the longest files come first, since begun last they keep one worker
    busy alone."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        for need in {FOLDERS.get(item.path.relative_to(TESTS).parts[0]), *(FIXTURES.get(name) for name in fixtures)}:
            if need is not None:
                item.add_marker(need)
    items.sort(key=lambda item: (item.path.parent != TESTS / "endtoend", item.path.name not in LONG))


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
