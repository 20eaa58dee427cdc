"""Opens the recorded run that a command was asked for: by its id, the beginning of it, a file, or the newest."""

from pathlib import Path

from ekiden.cli.options import Resolved, settings_options
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.runs import open_run as open_named
from ekiden.ledger.retention import ledger_folder

folder_options = settings_options(
    "ledger", skip=("ledger", "ledger_max_age_days", "ledger_max_size", "ledger_keep_prompts", "otlp_endpoint")
)
"""Gives a command ``--ledger-dir`` and ``--config``."""


def folder_of(resolved: Resolved) -> Path:
    return ledger_folder(resolved.config.ledger)


def open_run(resolved: Resolved, run: str | None) -> LedgerReader:
    """Raises :class:`~ekiden.evidence.reader.LedgerReadError`, which is one of the user's errors."""
    return open_named(folder_of(resolved), run or "last")
