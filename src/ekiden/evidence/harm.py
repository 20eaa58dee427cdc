"""Signals of harm at one moment of a run, each a pure function of ledger records."""

from ekiden.evidence.reader import LedgerReader
from ekiden.guardrails.readings import DEFAULT_OBJECTIVES, DEFAULT_WINDOWS, Objectives, Reading, Windows


def readings(
    reader: LedgerReader,
    *,
    at: float | None = None,
    objectives: Objectives = DEFAULT_OBJECTIVES,
    windows: Windows = DEFAULT_WINDOWS,
) -> dict[str, Reading]:
    """All of :data:`~ekiden.guardrails.readings.SIGNALS` at ``at``, seconds since the run began; now for None."""
    raise NotImplementedError
