"""``ekiden policy``: the rules of a running server, through ``/admin/policy`` and its neighbours."""

import json
from typing import Any

import click

from ekiden.cli.approve import waits_for
from ekiden.cli.asking import ask, server_options
from ekiden.cli.terminal import print_json, say
from ekiden.errors import UserError

_json = click.option("--json", "as_json", is_flag=True, help="print one JSON object")
_request = click.argument("request_id", metavar="REQUEST-ID")


@click.group()
def command() -> None:
    """See and change the rules of a running server; drain it, pause or end a request.

    Needs a key of scope admin; each change is recorded with the name of the key.
    """


@command.command()
@server_options
@_json
def show(url: str, key: str | None, as_json: bool) -> None:
    """Show the rules in force, and who set those that the configuration does not decide."""
    _show(ask(url, key, "/admin/policy"), as_json)


@command.command("set")
@click.argument("values", nargs=-1, required=True, metavar="NAME=VALUE...")
@click.option("--reason", required=True, metavar="TEXT", help="why; it is recorded with the name of your key")
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="default: for good",
)
@server_options
@_json
def set_(values: tuple[str, ...], reason: str, seconds: float | None, url: str, key: str | None, as_json: bool) -> None:
    """Change rules from the next step on, such as max_num_seqs=16 or scheduling_policy=priority.

    A VALUE is JSON, or text. "null" takes a limit away. A server with --two-person changes nothing before a person with
    another key approves (`ekiden approve`), except for what closes it or gives back a configured value.
    """
    body: dict[str, Any] = {"set": dict(map(_pair, values)), "reason": reason}
    if seconds is not None:
        body["expires_in_seconds"] = seconds
    _show(ask(url, key, "/admin/policy", body), as_json)


@command.command()
@click.option("--end", is_flag=True, help="open the server again")
@server_options
@_json
def drain(end: bool, url: str, key: str | None, as_json: bool) -> None:
    """Close the server to new requests; what it has taken goes on."""
    told = ask(url, key, "/admin/drain", {"draining": not end})
    if as_json:
        print_json(told)
    elif "approval" in told:
        say(waits_for(told["approval"]))
    else:
        state = "takes no new requests" if told["draining"] else "takes new requests"
        say(f"the server {state}; {told['in_flight']} in flight")


def _on_request(action: str, text: str) -> None:
    @command.command(action, help=text)
    @_request
    @server_options
    @_json
    def act(request_id: str, url: str, key: str | None, as_json: bool) -> None:
        told = ask(url, key, f"/admin/{action}", {"request_id": request_id})
        if as_json:
            print_json(told)
        else:
            say(f"{told['request_id']} is {told['status']}")


_on_request("pause", "Take a request out of the running, keeping what it has.")
_on_request("resume", "Let a paused request go on.")
_on_request("abort", "End a request; its client gets an error that says so.")


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UserError(f"{text!r} is no NAME=VALUE; write it as max_num_seqs=16")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _show(state: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(state)
        return
    if "approval" in state:
        say(waits_for(state["approval"]))
    say(f"epoch {state['epoch']}{', draining' if state['draining'] else ''}")
    for name, control in state["controls"].items():
        value = control["value"]
        if value == "" and control["set_by"] == "configuration":
            continue
        line = f"  {name} = {json.dumps(value) if isinstance(value, dict | bool) or value is None else value}"
        if control["set_by"] != "configuration" or control["who"]:
            left = control["expires_in_seconds"]
            until = "" if left is None else f", for {left:.0f} s more"
            why = f": {control['why']}" if control["why"] else ""
            line += f"   (by {control['who']}{until}{why})"
        say(line)
