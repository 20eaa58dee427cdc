"""How far long work is, on standard error: a bar on a terminal, a few plain lines or nothing elsewhere."""

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

PLAIN_LINES = 4
"""How many lines a whole job writes where standard error is no terminal."""

Report = Callable[[str, int, int], None]
"""Is told which work goes on, how much of it is done, and how much there is in all."""


@contextmanager
def progress(
    label: str, total: int, unit: str = "requests", *, plain_lines: int = PLAIN_LINES
) -> Iterator[Callable[[], None]]:
    """A callable to be called once for each piece of work done: a bar on a terminal, plain lines elsewhere."""
    columns = MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn()
    done = count()

    def amount(done: int, total: int) -> str:
        return f": {done:,} of {total:,} {unit}"

    with _progress(columns, amount, from_start=False, plain_lines=plain_lines) as report:

        def advance() -> None:
            report(label, next(done), total)

        advance()
        yield advance


def byte_progress(*, plain_lines: int = PLAIN_LINES) -> AbstractContextManager[Report]:
    """Reports in bytes; a total of 0 is not known. Nothing is printed until the first report."""

    def amount(done: int, total: int) -> str:
        return f": {done / 1e6:,.0f} of {total / 1e6:,.0f} MB" if total else ""

    return _progress((DownloadColumn(), TransferSpeedColumn()), amount, from_start=True, plain_lines=plain_lines)


@contextmanager
def _progress(
    columns: Iterable[ProgressColumn], amount: Callable[[int, int], str], *, from_start: bool, plain_lines: int
) -> Iterator[Report]:
    """Both kinds of progress, on stderr. ``from_start``: plain lines also tell when a piece of work begins."""
    console = Console(stderr=True, highlight=False)
    said: dict[str, int] = {}

    def print_line(what: str, done: int, total: int) -> None:
        part = plain_lines * done // total if total else 0
        if plain_lines and part > said.get(what, -1 if from_start else 0):
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
