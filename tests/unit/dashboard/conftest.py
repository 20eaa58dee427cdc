"""The ledgers that earlier versions recorded, as files of one folder."""

import gzip
from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "data" / "ledgers"


@pytest.fixture(scope="session")
def recorded_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Only read; a test that changes one copies it."""
    folder = tmp_path_factory.mktemp("runs")
    for path in DATA.glob("*.sqlite.gz"):
        (folder / path.name.removesuffix(".gz")).write_bytes(gzip.decompress(path.read_bytes()))
    return folder


@pytest.fixture(autouse=True)
def no_simulation_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands refuse variables that are no settings."""
    monkeypatch.delenv("SIMULATION_SEEDS", raising=False)
