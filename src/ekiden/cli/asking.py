"""Commands that ask a running server: its address and key, and what it answers."""

from typing import Any, Final, TypeVar

import click
import httpx

from ekiden.errors import UserError
from ekiden.evaluation.load.target import Target

DEFAULT_URL: Final = "http://127.0.0.1:8000"
PATIENCE_SECONDS: Final = 15.0
"""How long a server may take for an answer."""

Command = TypeVar("Command", bound=Any)


def server_options(command: Command) -> Command:
    """Give a command ``--url`` and ``--api-key``; it gets ``url`` and ``key``."""
    command = click.option("--api-key", "key", envvar="EKIDEN_API_KEY", help="key of scope admin (or EKIDEN_API_KEY)")(
        command
    )
    return click.option("--url", metavar="URL", default=DEFAULT_URL, show_default=True, help="address of the server")(
        command
    )


def ask(url: str, key: str | None, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the server answers at a path: a GET, or a POST of a body. Raises :class:`UserError` with its message."""
    target = Target.parse(url, api_key=key)
    asked = target.url.removesuffix("/v1") + path
    with target.client(timeout=PATIENCE_SECONDS) as client:
        try:
            address = f"{target.root}".rstrip("/") + path
            answer = client.get(address) if body is None else client.post(address, json=body)
        except httpx.HTTPError as error:
            raise UserError(target.no_answer(asked, error)) from error
    if answer.status_code not in (200, 202):
        raise UserError(f"{asked} answered{target.through} {answer.status_code}: {told(answer)}")
    try:
        found: dict[str, Any] = answer.json()
    except ValueError as error:
        raise UserError(f"{asked} did not answer with JSON: {error}") from error
    return found


def told(answer: httpx.Response) -> str:
    """The server's error message, and what to do."""
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = answer.text[:200]
    if answer.status_code == 404 and "nothing at" in message:
        message += " /admin is there for keys of scope admin only: `ekiden keys --help` makes one."
    return message
