"""``ekiden config show``: every setting, its value, and where the value comes from."""

import click

from ekiden.build.config_sources import SECRET_SETTINGS, Resolved, Value, all_settings
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
    settings = all_settings()
    if as_json:
        print_json(
            {
                s.key: {"value": _shown(s.name, resolved.values[s.key]), "source": resolved.sources[s.key]}
                for s in settings
            }
        )
        return
    rows = [("setting", "value", "from")]
    for s in settings:
        value = _shown(s.name, resolved.values[s.key])
        text = "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        rows.append((s.key, text, resolved.sources[s.key]))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for key, text, source in rows:
        click.echo(f"{key:{widths[0]}}  {text:{widths[1]}}  {source}")


def _shown(name: str, value: Value) -> Value:
    return "(set)" if name in SECRET_SETTINGS and value else value
