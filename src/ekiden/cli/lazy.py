"""Groups of commands whose modules are imported when a command of theirs runs, so that ``--help`` answers at once."""

import importlib
from collections.abc import Mapping
from typing import Any, cast

import click

from ekiden.build.config_sources import nearest


class LazyGroup(click.Group):
    """Knows its commands by name and help line. ``lazy`` has for each name ``module`` or ``module:attribute``, where
    the command lies (``command`` if none is named), and one line of help."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **rest: Any) -> None:
        super().__init__(*args, **rest)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._lazy, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._lazy[cmd_name][0].partition(":")
        return cast(click.Command, getattr(importlib.import_module(module), name or "command"))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.list_commands(ctx):
            raise click.UsageError(f"no such command: {args[0]}{nearest(args[0], self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, text) for name, (_, text) in self._lazy.items()]
        own = [(name, command.get_short_help_str()) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl([*rows, *own])
