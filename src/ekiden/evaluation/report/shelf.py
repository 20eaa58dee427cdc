"""The reports in a folder of evaluations, for the server's page."""

from pathlib import Path
from typing import Final

import msgspec

from ekiden.dashboard.ports import EvaluationLine
from ekiden.evaluation.report.words import LANGUAGES
from ekiden.evaluation.report.write import JSON_NAME, page_name

MOST_REPORTS: Final = 100
_DEEPEST: Final = 4
"""Folders between the given one and a report: a time, a plan, and what is exploratory."""


class _Told(msgspec.Struct):
    """What is read of a ``report.json``."""

    verdict: str
    phase: str
    label: str
    summary: dict[str, str]
    question: str
    integrity: list[str]


class Shelf:
    """``folder`` need not be there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[tuple[Path, int], _Told | None] = {}
        """By file and date: a report of an evaluation may have megabytes, and does not change."""

    def listed(self) -> list[EvaluationLine]:
        """The newest first, at most :data:`MOST_REPORTS`; what is no report is left out."""
        found = [line for path in self._files() if (line := self._line(path)) is not None]
        return sorted(found, key=lambda line: -line.written)[:MOST_REPORTS]

    def report(self, name: str) -> bytes | None:
        """A page, by the name that :meth:`listed` gives it; None for any other."""
        for path in self._files():
            for language in LANGUAGES:
                page = path.with_name(page_name(language))
                if page.is_file() and self._name(page) == name:
                    return page.read_bytes()
        return None

    def _files(self) -> list[Path]:
        patterns = ["*/" * depth + JSON_NAME for depth in range(_DEEPEST)]
        return [path for pattern in patterns for path in self._folder.glob(pattern)]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()

    def _line(self, path: Path) -> EvaluationLine | None:
        try:
            written = path.stat().st_mtime_ns
            if (path, written) not in self._read:
                self._read[path, written] = _told(path)
        except OSError:
            return None
        told = self._read[path, written]
        if told is None:
            return None
        pages = {language: path.with_name(page_name(language)) for language in LANGUAGES}
        return EvaluationLine(
            name=self._name(path.parent),
            verdict=told.verdict,
            phase=told.phase,
            label=told.label,
            question=told.question,
            summary=told.summary,
            written=written / 1e9,
            changed=bool(told.integrity),
            reports={language: self._name(page) for language, page in pages.items() if page.is_file()},
        )


def _told(path: Path) -> _Told | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Told)
    except msgspec.DecodeError:
        return None
