"""What the guard sees: the signals of the run that is being written, as of now."""

from pathlib import Path
from typing import Protocol

from ekiden.evidence.harm import readings
from ekiden.evidence.reader import LedgerReader
from ekiden.guardrails.readings import Objectives, Readings
from ekiden.ledger.retention import is_being_written


class Sense(Protocol):
    def readings(self, run: Path | None, now: float, objectives: Objectives) -> Readings | None:
        """The signals of a run at a time of the engine's clock; None while no engine records."""

    def close(self) -> None: ...


class LedgerSense:
    """Keeps the newest run's file open, and reads it anew each time."""

    def __init__(self) -> None:
        self._reader: LedgerReader | None = None

    def readings(self, run: Path | None, now: float, objectives: Objectives) -> Readings | None:
        if self._reader is not None and self._reader.path != run:
            self.close()
        if run is None or not is_being_written(run):
            return None
        if self._reader is None:
            self._reader = LedgerReader(run)
        at = now - self._reader.header.clock_base / 1e6
        return readings(self._reader, at=at, objectives=objectives)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
