"""What the page shows of rooms above it: evaluations and releases. Whoever builds the server hands them in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec


class EvaluationLine(msgspec.Struct, frozen=True, kw_only=True):
    """One report. ``reports``: its pages, by language; ``written``: Unix time; ``summary`` by language."""

    name: str
    verdict: str
    phase: str
    label: str
    """confirmatory or exploratory."""
    question: str
    summary: dict[str, str]
    written: float
    changed: bool
    """Whether something was found changed since its registration."""
    reports: dict[str, str]


class Evaluations(Protocol):
    """Every method reads files, on a thread that may."""

    def listed(self) -> list[EvaluationLine]:
        """The newest first. ``reports`` has names for :meth:`report`."""

    def report(self, name: str) -> bytes | None:
        """A report's page; None for a name that is none of those listed."""


class Releases(Protocol):
    """Every method reads or writes files, on a thread that may, and raises :class:`ekiden.errors.UserError`."""

    def listed(self) -> list[dict[str, Any]]:
        """The states of releases, the one that was last written to first; one that cannot be read says so."""

    def act(self, action: str, name: str, who: str, why: str, *, despite_inconclusive: bool = False) -> dict[str, Any]:
        """A person's ``approve``, ``promote`` or ``abort`` of a release; returns its state after that. The server's
        ledger records who did it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePorts:
    """Each makes its room's side of the page when that is first asked for, which may import much; None: there is
    nothing of it."""

    evaluations: Callable[[], Evaluations] | None = None
    releases: Callable[[], Releases] | None = None
