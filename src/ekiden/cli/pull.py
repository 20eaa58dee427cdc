"""``ekiden pull``: fetch and convert ahead of time. What it leaves in the cache is what ``serve`` would have made."""

import click

from ekiden.cli.options import ENGINE_ROOMS, Resolved, settings_options
from ekiden.cli.terminal import say


@click.command()
@settings_options(*ENGINE_ROOMS)
def command(resolved: Resolved) -> None:
    """Fetch and convert a model, so that serving it starts at once."""
    from ekiden.build.model import load_described
    from ekiden.cli.loading import describe_model

    model = describe_model(resolved.config)
    load_described(resolved.config, model).runner.close()
    say(f"{model.files.name} is ready in {model.files.cache_dir}")
