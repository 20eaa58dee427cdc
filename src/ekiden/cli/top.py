"""``ekiden top``: a running engine in one page, from its ledger or from a server's ``GET /admin/live``."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import click
import httpx
import msgspec
from rich.console import Console, Group
from rich.live import Live

from ekiden.cli.asking import told
from ekiden.cli.options import Resolved
from ekiden.cli.runs import folder_of, folder_options
from ekiden.cli.terminal import out, print_json
from ekiden.cli.top_page import page, printable
from ekiden.errors import UserError
from ekiden.evaluation.load.target import Target
from ekiden.evidence.live import WINDOW_SECONDS, live_view
from ekiden.evidence.live_view import LiveView
from ekiden.evidence.runs import open_run

_PATIENCE = 10.0
"""Seconds that a server may take for an answer."""
_LOWEST = 20
"""A page needs so many lines; a lower terminal shows its upper part."""


@click.command()
@click.argument("run", metavar="[RUN]", default="last")
@folder_options
@click.option("--url", metavar="URL", help="ask this server instead of the ledger; needs a key of scope admin")
@click.option("--api-key", "key", envvar="EKIDEN_API_KEY", help="bearer token of that server")
@click.option(
    "--interval", metavar="SECONDS", type=click.FloatRange(0.1, 3600.0), default=1.0, help="time between pages  [1]"
)
@click.option(
    "--window",
    metavar="SECONDS",
    type=click.FloatRange(1.0, 600.0),
    default=WINDOW_SECONDS,
    help=f"figures are of so many last seconds  [{WINDOW_SECONDS:g}]",
)
@click.option("--once", is_flag=True, help="print one page; so it is where no terminal watches")
@click.option("--json", "as_json", is_flag=True, help="print the view once, as one JSON object")
def command(
    resolved: Resolved,
    run: str,
    url: str | None,
    key: str | None,
    interval: float,
    window: float,
    once: bool,
    as_json: bool,
) -> None:
    """Watch a running engine: slots, queue, KV blocks, pace, tenants, rules in force.

    RUN is a recorded run (its id, the beginning of it, a path); without it the newest run is followed.
    """
    with ExitStack() as stack:
        view = partial(_ledger_view, folder_of(resolved), run, window)
        if url:
            target = Target.parse(url, api_key=key)
            client = stack.enter_context(target.client(timeout=_PATIENCE))
            view = partial(_remote_view, client, target, window)
        first = view()
        console = out()
        if as_json:
            print_json(msgspec.to_builtins(first))
        elif once or not console.is_terminal:
            for line in page(first, width=console.width):
                console.print(line, soft_wrap=True)
        else:
            _follow(console, view, first, interval)


def _ledger_view(folder: Path, run: str, window: float) -> LiveView:
    """From the run's file; for ``last``, from the newest run's."""
    with open_run(folder, run) as reader:
        return live_view(reader, now=time.time(), window_seconds=window)


def _remote_view(client: httpx.Client, target: Target, window: float) -> LiveView:
    path = "/admin/live"
    url = target.url.removesuffix("/v1") + path
    try:
        answer = client.get(f"{target.root}".rstrip("/") + path, params={"window": window})
    except httpx.HTTPError as error:
        raise UserError(target.no_answer(url, error)) from error
    if answer.status_code != 200:
        raise UserError(f"{url} answered{target.through} {answer.status_code}: {told(answer)}")
    try:
        return msgspec.json.decode(answer.content, type=LiveView)
    except msgspec.DecodeError as error:
        raise UserError(f"{url} did not answer with a view of this version: {error}") from error


def _follow(console: Console, current: Callable[[], LiveView], first: LiveView, interval: float) -> None:
    """Draw until q or Ctrl-C. An error is shown and tried again: the server may be restarting."""
    view, trouble = first, ""
    try:
        with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                width, height = console.size
                keys = f"q quits   {printable(trouble)}".rstrip()
                lines = page(view, width=width, height=max(height, _LOWEST), keys=keys)
                live.update(Group(*lines[:height]), refresh=True)
                if "q" in pressed(interval).lower():
                    return
                try:
                    view, trouble = current(), ""
                except UserError as error:
                    trouble = str(error)
    except KeyboardInterrupt:
        return


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A callable that waits for a key and returns what was pressed, or nothing after so many seconds."""
    watched = [sys.stdin.fileno()] if sys.stdin.isatty() else []
    before = [termios.tcgetattr(descriptor) for descriptor in watched]

    def press(seconds: float) -> str:
        ready, _, _ = select.select(watched, [], [], seconds)
        return os.read(ready[0], 64).decode(errors="replace") if ready else ""

    try:
        for descriptor in watched:
            tty.setcbreak(descriptor)
        yield press
    finally:
        for descriptor, mode in zip(watched, before, strict=True):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, mode)
