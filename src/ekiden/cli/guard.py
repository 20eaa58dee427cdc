"""``ekiden guard``: the guard of a running server, through ``/admin/guard``."""

from datetime import datetime
from typing import Any

import click

from ekiden.cli.approve import waits_for
from ekiden.cli.asking import ask, server_options
from ekiden.cli.lazy import LazyGroup
from ekiden.cli.terminal import print_json, say

_PATH = "/admin/guard"
_ON_RECORDS = {
    "lead": ("ekiden.cli.guard_replay", "Try the guard's rules on a record: what each would have done, and when."),
}
_reason = click.option("--reason", required=True, metavar="TEXT", help="why; it is recorded with the name of your key")
_json = click.option("--json", "as_json", is_flag=True, help="print one JSON object")


@click.group(cls=LazyGroup, lazy=_ON_RECORDS)
def command() -> None:
    """See what a server's guard holds in force; acknowledge, override, pause it.

    Each act needs a key of scope admin and a reason, and is recorded in the ledger.
    """


@command.command()
@server_options
@_json
def status(url: str, key: str | None, as_json: bool) -> None:
    """Show the rules, what they see and hold in force, what waits for a person, and the newest decisions."""
    view = ask(url, key, _PATH)
    if as_json:
        print_json(view)
    else:
        _show(view)


@command.command()
@click.argument("rule")
@_reason
@server_options
@_json
def acknowledge(rule: str, reason: str, url: str, key: str | None, as_json: bool) -> None:
    """Say that you have seen what RULE did: it may come down from now on."""
    _act(url, key, as_json, action="acknowledge", rule=rule, reason=reason)


@command.command()
@click.argument("rule")
@click.option("--for", "seconds", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="for how long")
@click.option("--end", is_flag=True, help="end an override before its time")
@_reason
@server_options
@_json
def override(
    rule: str, seconds: float | None, end: bool, reason: str, url: str, key: str | None, as_json: bool
) -> None:
    """Take RULE out of force for a while: all that it set goes at once."""
    if (seconds is None) is not end:
        raise click.UsageError("say for how long with --for SECONDS, or end an override with --end")
    if end:
        _act(url, key, as_json, action="end_override", rule=rule, reason=reason)
    else:
        _act(url, key, as_json, action="override", rule=rule, reason=reason, expires_in_seconds=seconds)


@command.command()
@click.option(
    "--for", "seconds", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="default: until resumed"
)
@_reason
@server_options
@_json
def pause(seconds: float | None, reason: str, url: str, key: str | None, as_json: bool) -> None:
    """Take all rules out of force."""
    _act(url, key, as_json, action="pause", reason=reason, expires_in_seconds=seconds)


@command.command()
@_reason
@server_options
@_json
def resume(reason: str, url: str, key: str | None, as_json: bool) -> None:
    """Let the rules of a paused guard work again."""
    _act(url, key, as_json, action="resume", reason=reason)


def _act(url: str, key: str | None, as_json: bool, **body: Any) -> None:
    told = ask(url, key, _PATH, {name: value for name, value in body.items() if value is not None})
    if as_json:
        print_json(told)
        return
    approval = told["approval"]
    if approval is not None and approval["state"] == "open":
        say(waits_for(approval))
    _show(told["guard"])


def _show(view: dict[str, Any]) -> None:
    failure = f": {view['failure']}" if view["failure"] else ""
    say(f"guard: {view['mode']}, {view['state']}{failure}")
    if view["paused"]:
        say(f"paused by {view['paused']['who']}: {view['paused']['why']}")
    say(f"in force: {view['in_force'] or 'nothing'}")
    for rule in view["rules"]:
        value = "-" if rule["value"] is None else f"{rule['value']:.3g}"
        rungs = f"rung {rule['rung']} of {len(rule['actions'])}"
        held = f" ({', '.join(rule['in_force'])})" if rule["in_force"] else ""
        rest = " waits for a person" if rule["waits_for_person"] else ""
        if rule["overridden_by"]:
            rest += f" overridden by {rule['overridden_by']} for {rule['override_ends_in_seconds']:.0f} s more"
        say(f"  {rule['rule']}: {rule['signal']} {value} (over {rule['threshold']:g}), {rungs}{held}{rest}")
    for approval in view["approvals"]:
        what = f"{approval['kind']} {approval['subject']}"
        say(f"  {approval['id']} waits for {approval['lacking']} yes: {what}, asked by {approval['asked_by']}")
    for decision in view["decisions"][:10]:
        at = datetime.fromtimestamp(decision["at"]).astimezone()
        about = f"{decision['rule']} " if decision["rule"] else ""
        say(f"  {at:%H:%M:%S} {decision['who']}: {about}{decision['what']}: {decision['why']}")
