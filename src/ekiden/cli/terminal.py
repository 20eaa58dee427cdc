"""Output of commands: results on stdout, everything else on stderr, progress bars only on a terminal."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from ekiden.cli.streams import encodable

PLAIN_LINES = 4
"""How many progress lines a whole job writes where stderr is no terminal."""

Report = Callable[[str, int, int], None]
"""Is told which work goes on, how much of it is done, and how much there is in all."""


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
    text = json.dumps(value, indent=2, ensure_ascii=False)
    sys.stdout.write((text if encodable(text) else json.dumps(value, indent=2)) + "\n")


@contextmanager
def progress(label: str, total: int, unit: str = "requests") -> Iterator[Callable[[], None]]:
    """A callable to be called once for each piece of work done: a bar on a terminal, plain lines elsewhere."""
    columns = MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn()
    done = count()
    with _progress(columns, lambda done, total: f": {done:,} of {total:,} {unit}", from_start=False) as report:

        def advance() -> None:
            report(label, next(done), total)

        advance()
        yield advance


def byte_progress() -> AbstractContextManager[Report]:
    """Reports in bytes; a total of 0 is not known. Nothing is printed until the first report."""

    def amount(done: int, total: int) -> str:
        return f": {done / 1e6:,.0f} of {total / 1e6:,.0f} MB" if total else ""

    return _progress((DownloadColumn(), TransferSpeedColumn()), amount, from_start=True)


@contextmanager
def _progress(
    columns: Iterable[ProgressColumn], amount: Callable[[int, int], str], *, from_start: bool
) -> Iterator[Report]:
    """Both kinds of progress, on stderr. ``from_start``: plain lines also tell when a piece of work begins."""
    console = err()
    said: dict[str, int] = {}

    def print_line(what: str, done: int, total: int) -> None:
        part = PLAIN_LINES * done // total if total else 0
        if part > said.get(what, -1 if from_start else 0):
            said[what] = part
            console.print(f"{what}{amount(done, total)}", soft_wrap=True)

    if not console.is_terminal:
        yield print_line
        return
    bars = Progress(TextColumn("{task.description}"), BarColumn(), *columns, console=console, transient=not from_start)
    tasks: dict[str, TaskID] = {}

    def draw(what: str, done: int, total: int) -> None:
        bars.start()
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=None)
        bars.update(tasks[what], completed=done, total=total or None)

    try:
        yield draw
    finally:
        bars.stop()
