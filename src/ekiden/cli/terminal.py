"""Output of commands: results on stdout, everything else on stderr."""

import json
import sys
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from ekiden.cli.streams import encodable


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
