"""Flags that ask what would be if some settings of the scheduler were others than those of a recorded run."""

from typing import Any

import click

from ekiden.config import BATCHING, ORDERS

_CHANGES = (
    ("--batching", click.Choice(BATCHING), "what if the batching policy had been this one"),
    ("--scheduling-policy", click.Choice(ORDERS), "what if the order had been this one"),
    ("--max-num-seqs", click.IntRange(min=1), "what if there had been so many slots"),
    ("--max-num-batched-tokens", click.IntRange(min=1), "what if a step had held so many tokens"),
    ("--max-concurrent-prefills", click.IntRange(min=1), "what if so many prompts had been computed at once"),
    ("--target-itl-ms", float, "what if the inter-token target had been this one (0: none)"),
)


def with_changes(command: Any) -> Any:
    """Give a command these flags; each is None where it is not given, under the name of its setting."""
    for flag, kind, text in reversed(_CHANGES):
        command = click.option(flag, type=kind, default=None, help=text)(command)
    return command
