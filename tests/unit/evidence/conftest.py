"""The command refuses variables that are no settings, and the simulation has one of its own."""

import pytest


@pytest.fixture(autouse=True)
def no_simulation_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIMULATION_SEEDS", raising=False)
