"""``ekiden keys``: API keys for ``ekiden serve --api-keys-file``."""

import json

import click

from ekiden.errors import UserError

SCOPES = ("inference", "admin")


@click.group()
def command() -> None:
    """Make API keys for `serve --api-keys-file`."""


@command.command()
@click.argument("name")
@click.option("--tenant", help="whose limits and share its requests fall under  [default: NAME]")
@click.option(
    "--scope", "scopes", type=click.Choice(SCOPES), multiple=True, default=("inference",), show_default=True,
    help="what the key is for; may be given twice",
)  # fmt: skip
def new(name: str, tenant: str | None, scopes: tuple[str, ...]) -> None:
    """Make a key called NAME.

    The key goes to standard error, once: it is stored nowhere. What belongs into the file goes to standard output, so
    that `ekiden keys new alice >> keys.toml` adds it.
    """
    from ekiden.api.keys import TENANT_NAME, TENANT_RULE, new_key

    for what, value in (("NAME", name), ("--tenant", tenant)):
        if value is not None and not TENANT_NAME.fullmatch(value):
            raise UserError(f"{what} is {value!r}; it must be {TENANT_RULE}")
    key, digest = new_key()
    click.echo(f"The key of {name}, shown only now: {key}", err=True)
    lines = ["[[keys]]", f'name = "{name}"', f'hash = "{digest}"']
    if tenant is not None:
        lines.append(f'tenant = "{tenant}"')
    lines.append(f"scopes = {json.dumps(list(dict.fromkeys(scopes)))}")
    click.echo("\n".join(lines) + "\n")
