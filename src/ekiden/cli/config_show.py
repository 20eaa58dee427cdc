"""``ekiden config show``: every setting, its value, and where the value comes from."""

import click

from ekiden.build.config_sources import Resolved, all_settings
from ekiden.cli.options import ALL_ROOMS, settings_options
from ekiden.cli.terminal import print_json


@click.group()
def command() -> None:
    """Show the settings and where each value comes from."""


@command.command()
@settings_options(*ALL_ROOMS)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def show(resolved: Resolved, as_json: bool) -> None:
    """Show the settings that `ekiden serve` would use with the same flags, variables and file."""
    values = {s.key: s.shown(s.of(resolved.config)) for s in all_settings()}
    if as_json:
        print_json({key: {"value": value, "source": resolved.sources[key]} for key, value in values.items()})
        return
    rows = [("setting", "value", "from")]
    for key, value in values.items():
        text = "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        rows.append((key, text, resolved.sources[key]))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for key, text, source in rows:
        click.echo(f"{key:{widths[0]}}  {text:{widths[1]}}  {source}")
