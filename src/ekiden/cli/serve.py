"""``ekiden serve``: the engine in its own process, and the HTTP API over it in this one."""

import logging

import click

from ekiden.cli.options import ALL_ROOMS, Resolved, settings_options
from ekiden.cli.terminal import UserError


@click.command()
@settings_options(*ALL_ROOMS)
def command(resolved: Resolved) -> None:
    """Serve a model over an OpenAI-compatible HTTP API."""
    from ekiden.api.app import create_app
    from ekiden.api.auth import check_bind
    from ekiden.api.server import BindError, bind, serve
    from ekiden.cli.compose import default_sampling, describe_model, load_model
    from ekiden.engine.process import EngineClient

    config = resolved.config
    server = config.server
    logging.basicConfig(level=server.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    check_bind(server.host, server.api_key)
    try:
        # A port in use is told before anything is fetched.
        bind(server.host, server.port).close()
    except BindError as error:
        raise UserError(str(error)) from error
    model = describe_model(config).description
    engine = EngineClient(load_model, config)

    async def start() -> None:
        await engine.start()

    async def stop() -> None:
        await engine.stop()

    status = serve(
        lambda: create_app(engine, model.tokenizer, model.chat_template, config, default_sampling(model)),
        server.host,
        server.port,
        start=start,
        stop=stop,
        shutdown_timeout=server.shutdown_timeout,
        log_level=server.log_level,
    )
    raise click.exceptions.Exit(status)
