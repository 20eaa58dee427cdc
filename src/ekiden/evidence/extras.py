"""Packages that only exports and evaluations need, and that not every installation has."""

import importlib
from typing import Any

from ekiden.errors import UserError


class ExportError(UserError, RuntimeError):
    """Something that cannot be made; the message says what is missing."""


def needed(module: str, extra: str) -> Any:
    """A module of an optional package. Raises :class:`ExportError` naming what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ExportError(f"this needs {module.partition('.')[0]}: pip install 'ekiden[{extra}]'") from error
