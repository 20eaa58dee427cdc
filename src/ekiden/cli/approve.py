"""``ekiden approve``: one person's yes or no, through ``/admin/approvals``."""

import json
from typing import Any

import click

from ekiden.cli.asking import ask, server_options
from ekiden.cli.terminal import print_json, say

_PATH = "/admin/approvals"


@click.command()
@click.argument("approval", metavar="[ID]", required=False)
@click.option("--refuse", is_flag=True, help="say no")
@click.option("--reason", metavar="TEXT", help="why; it is recorded with the name of your key")
@server_options
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def command(approval: str | None, refuse: bool, reason: str | None, url: str, key: str | None, as_json: bool) -> None:
    """Approve or refuse what waits for a person's yes.

    That may be a guard's step, an override, a change of policy or a release. Without ID the approvals are listed. A
    server with --two-person needs two keys of different names.
    """
    if approval is None:
        if refuse or reason:
            raise click.UsageError("name the approval: ekiden approve ID --reason TEXT")
        told = ask(url, key, _PATH)
        if as_json:
            print_json(told)
        else:
            for each in told["approvals"]:
                _show(each)
            if not told["approvals"]:
                say("nothing waits for approval")
        return
    if not reason:
        raise click.UsageError("say why with --reason TEXT; it is recorded")
    settled = ask(url, key, _PATH, {"action": "refuse" if refuse else "approve", "id": approval, "reason": reason})
    if as_json:
        print_json(settled)
    else:
        _show(settled)


def waits_for(approval: dict[str, Any]) -> str:
    """What to do about an approval that is open."""
    return f"It waits for {approval['lacking']} more: ekiden approve {approval['id']} --reason TEXT"


def _show(approval: dict[str, Any]) -> None:
    said = ", ".join(f"{voice['who']} {'yes' if voice['yes'] else 'no'}" for voice in approval["voices"])
    waits = f", waits for {approval['lacking']} more" if approval["state"] == "open" else ""
    what = f"{approval['kind']} {approval['subject']}"
    say(
        f"{approval['id']} {approval['state']}{waits}: {what}, asked by {approval['asked_by']}"
        + f" ({said})" * bool(said)
    )
    say(f"   {approval['why']}")
    for name, value in approval["values"].items():
        many = isinstance(value, list)
        say(f"   {name}: {' or '.join(map(json.dumps, value)) if many else json.dumps(value)}")
