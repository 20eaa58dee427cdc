"""Fixtures that several rooms' tests share, and what each test needs, as markers.

No test is marked by hand: its folder and its fixtures say what it needs. ``make test-fast`` leaves out what is marked.
"""

import gc
import os
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ekiden.models.fetch import model_cache_dir
from ekiden.models.resolve import ModelFiles, resolve

# How fast examples are generated and run depends on the machine, not on the code. The test command draws the same
# examples each time, so that the same commit gets the same answer. `make soak` draws new ones, and more
# (SOAK_EXAMPLES).
SOAK = "SOAK_EXAMPLES" in os.environ
settings.register_profile(
    "ekiden",
    deadline=None,
    derandomize=not SOAK,
    max_examples=200 if SOAK else 50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ekiden")

# What is imported and collected stays until the end: looking through it again and again for garbage takes seconds.
gc.disable()

TESTS = Path(__file__).parent
FOLDERS = {"backends": "model", "endtoend": "model", "clients": "program", "fuzz": "program", "browser": "program"}
FIXTURES = {"smollm2_files": "model"}
LONGEST = (
    "clients/test_programs.py", "endtoend/test_same_tokens.py", "browser/test_page_live.py",
    "endtoend/test_structured_output.py", "endtoend/test_speculation.py", "backends/test_invariance.py",
    "unit/engine/test_engines.py", "clients/test_documentation.py", "browser/test_page_why.py",
    "browser/test_page_acts.py", "fuzz/test_fuzz.py", "simulation/test_guard.py", "unit/engine/test_after_an_end.py",
    "unit/evaluation/experiment/test_phases.py", "unit/evidence/test_replay.py", "known_faults/test_health.py",
    "api/test_page.py", "endtoend/test_engine_ends.py", "endtoend/test_reference.py", "clients/test_hub.py",
    "endtoend/test_known_faults.py", "endtoend/test_reading.py", "unit/cli/test_fake_backend.py",
    "unit/evidence/test_live.py", "backends/test_pooling.py", "simulation/test_simulation.py",
    "simulation/test_mutations.py", "known_faults/test_own_engine_end.py", "known_faults/test_batching.py",
    "endtoend/test_ledger.py", "endtoend/test_tool_calls.py", "unit/cli/test_killed_server.py",
    "unit/cli/test_serve_ends.py", "unit/sampling/test_draw.py", "known_faults/test_own_processes.py",
    "unit/cli/test_evaluate_load.py", "api/test_noted_refusals.py", "backends/test_families.py",
)  # fmt: skip
"""The files of ten seconds and more, from the longest on."""
_PLACES = {TESTS / name: place for place, name in enumerate(LONGEST)}
assert all(path.exists() for path in _PLACES), "a file that takes long has another name now"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A folder of tests that are left out is not even read: importing a model's kernels and clients takes seconds."""
    need = FOLDERS.get(collection_path.name)
    return True if need is not None and f"not {need}" in config.option.markexpr else None


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by what it needs; the longest files come first, since begun last they keep one worker
    busy alone."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        for need in {FOLDERS.get(item.path.relative_to(TESTS).parts[0]), *(FIXTURES.get(name) for name in fixtures)}:
            if need is not None:
                item.add_marker(need)
    items.sort(key=lambda item: _PLACES.get(item.path, len(_PLACES)))


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Servers that tests start write their ledgers here, not in the home folder."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


class Unsynced(sqlite3.Connection):
    """As ledgers are written, but without waiting for the disk."""

    def execute(self, sql: str, parameters: object = (), /) -> sqlite3.Cursor:
        if sql.startswith("PRAGMA synchronous"):
            sql = "PRAGMA synchronous=OFF"
        cursor = super().execute(sql, parameters)  # type: ignore[arg-type]
        if sql.startswith("PRAGMA journal_mode"):
            super().execute("PRAGMA synchronous=OFF")
        return cursor


@pytest.fixture(scope="session", autouse=True)
def unsynced_files() -> Iterator[None]:
    """What a test writes need not survive a power failure, and a slow disk would take most of many tests' time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Unsynced))
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session")
def smollm2_files() -> ModelFiles:
    """The default model, fetched into the model cache (once for all runs) and checked against its hash."""
    return resolve("smollm2-135m", model_cache_dir(os.environ.get("EKIDEN_MODEL_CACHE")))


@pytest.fixture(scope="session")
def reference_dir() -> Path:
    """Tiny models of every family, with logits from an independent implementation."""
    return Path(__file__).parent / "reference"
