"""Output of commands: results on stdout, everything else on stderr, progress bars only on a terminal."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.table import Table

PLAIN_LINES = 4
"""How many progress lines a whole job writes where stderr is no terminal."""


def out() -> Console:
    return Console(highlight=False)


def err() -> Console:
    return Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """Print a line of the result, without breaking it."""
    out().print(text, soft_wrap=True)


def plain_table(
    *columns: str, rows: Iterable[Iterable[str]] = (), right: Iterable[int] = (), header: bool = True
) -> Table:
    """A table without a frame; the columns ``right`` are aligned to the right."""
    table = Table(*columns, box=None, pad_edge=False, show_header=header)
    for row in rows:
        table.add_row(*row)
    for column in right:
        table.columns[column].justify = "right"
    return table


def print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


class Meter(Protocol):
    def advance(self, steps: float = 1.0, *, total: float | None = None) -> None: ...


class _BarMeter:
    def __init__(self, progress: Progress, label: str, total: float | None) -> None:
        self._progress = progress
        self._task = progress.add_task(label, total=total)

    def advance(self, steps: float = 1.0, *, total: float | None = None) -> None:
        if total is not None:
            self._progress.update(self._task, total=total)
        self._progress.advance(self._task, steps)


class _LineMeter:
    """A line about every quarter of the job."""

    def __init__(self, console: Console, label: str, total: float | None, unit: str) -> None:
        self._console, self._label, self._total, self._unit = console, label, total, unit
        self._done, self._said = 0.0, 0

    def advance(self, steps: float = 1.0, *, total: float | None = None) -> None:
        self._total = total if total is not None else self._total
        self._done += steps
        if not self._total:
            return
        part = int(PLAIN_LINES * self._done / self._total)
        if part > self._said:
            self._said = part
            self._console.print(f"{self._label}: {self._done:,.0f} of {self._total:,.0f} {self._unit}", soft_wrap=True)


@contextmanager
def progress(label: str, total: float | None, unit: str = "requests") -> Iterator[Meter]:
    """A progress bar on a terminal, plain lines elsewhere; both on stderr."""
    console = err()
    if not console.is_terminal:
        yield _LineMeter(console, label, total, unit)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield _BarMeter(bar, label, total)


@contextmanager
def byte_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A callable ``report(what, done, total)`` in bytes, shown as a bar on a terminal and as plain lines elsewhere.

    Nothing is printed until it is called for the first time.
    """
    console = err()
    if not console.is_terminal:
        yield _ByteLines(console).report
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bars = Progress(*columns, console=console)
    tasks: dict[str, TaskID] = {}

    def report(what: str, done: int, total: int) -> None:
        bars.start()
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=None)
        bars.update(tasks[what], completed=done, total=total or None)

    try:
        yield report
    finally:
        bars.stop()


class _ByteLines:
    """One line when a piece of work begins, and one about every quarter of it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[str, int] = {}

    def report(self, what: str, done: int, total: int) -> None:
        quarter = 4 * done // total if total else 0
        if quarter > self._said.get(what, -1):
            self._said[what] = quarter
            amount = f": {done / 1e6:,.0f} of {total / 1e6:,.0f} MB" if total else ""
            self._console.print(f"{what}{amount}", soft_wrap=True)
