"""Removes the simulation's own environment variable, since the command refuses variables that are no settings."""

import pytest


@pytest.fixture(autouse=True)
def no_simulation_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIMULATION_SEEDS", raising=False)
