"""``ekiden lineage``: what made a run, a report or a running server, and what differs between two of them."""

import json
from pathlib import Path

import click

from ekiden.cli.options import Resolved
from ekiden.cli.runs import folder_options, open_run
from ekiden.cli.terminal import out, plain_table, print_json, say
from ekiden.config import UNIX
from ekiden.errors import UserError
from ekiden.evaluation.benches.engine import WHOLE
from ekiden.evaluation.benches.serve import get_json
from ekiden.evaluation.load.target import Target
from ekiden.evidence.lineage import changes, lineage_of
from ekiden.state.lineage import SECTIONS, Lineage, Value

_SHOW = "show"
_WIDEST = 72
"""Characters of a value that are shown."""
_OF = "a run's id (or the beginning of it), a ledger file, `last`, a bench report (.json), or a server's URL"


class _ShowUnlessNamed(click.Group):
    """``ekiden lineage X`` is ``ekiden lineage show X``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = [_SHOW, *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ShowUnlessNamed, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Say what made a run or a report, and what differs between two.

    Without a command it is `show`.
    """


@command.command(_SHOW, help=f"Show what made WHAT: {_OF}. Default: the newest run.")
@click.argument("what", metavar="[WHAT]", default="last")
@folder_options
@click.option("--api-key", "key", envvar="EKIDEN_API_KEY", help="bearer token of a server")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def show(resolved: Resolved, what: str, key: str | None, as_json: bool) -> None:
    lineage = _find(resolved, what, key)
    if as_json:
        print_json(lineage.as_object())
        return
    say(f"lineage [bold]{lineage.digest[:8]}[/bold] of {what} ({lineage.digest})")
    for section in (*SECTIONS, "apart"):
        values: dict[str, Value] = getattr(lineage, section)
        if not values:
            continue
        title = "apart (not in the digest)" if section == "apart" else section
        sources = {name: source for name, source in lineage.sources.items() if source != "default"}
        rows = ((name, _shown(value), sources.get(name, "")) for name, value in values.items())
        out().print(plain_table(f"\n{title}", "", "", rows=rows))


@command.command(help=f"Say what changed from A to B, each of them {_OF}. Exit status 1 when something did.")
@click.argument("a")
@click.argument("b")
@folder_options
@click.option("--api-key", "key", envvar="EKIDEN_API_KEY", help="bearer token of a server")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def diff(resolved: Resolved, a: str, b: str, key: str | None, as_json: bool) -> int:
    before, after = _find(resolved, a, key), _find(resolved, b, key)
    found = changes(before, after)
    deciding = before.digest != after.digest
    if as_json:
        told = [change._asdict() for change in found]
        print_json({"a": before.digest, "b": after.digest, "same": not deciding, "changes": told})
        return int(deciding)
    say(f"{before.digest[:8]} -> {after.digest[:8]}" if deciding else f"Made by the same: lineage {before.digest[:8]}.")
    if found:
        rows = ((change.section, change.name, _shown(change.before), _shown(change.after)) for change in found)
        out().print(plain_table("section", "what", a, b, rows=rows))
    return int(deciding)


def _find(resolved: Resolved, what: str, key: str | None) -> Lineage:
    """Raises :class:`UserError` naming what was given."""
    try:
        if what.startswith(("http://", "https://", UNIX)):
            return lineage_of(get_json(Target.parse(what, api_key=key), "/lineage"))
        if what.endswith(".json"):
            report = json.loads(Path(what).read_text(encoding="utf-8"))
            told = report.get("lineage") if isinstance(report, dict) else None
            return lineage_of(told.get(WHOLE, told) if isinstance(told, dict) else report)
        with open_run(resolved, what) as reader:
            return reader.header.lineage
    except (OSError, ValueError) as error:  # the errors of servers and ledgers among them
        raise UserError(f"{what}: {error}" if what not in str(error) else str(error)) from error


def _shown(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."
