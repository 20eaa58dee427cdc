"""``ekiden serve``: the engine in its own process, and the HTTP API over it in this one."""

import asyncio
import concurrent.futures
import functools
import logging
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from ekiden.build.early import spawn_early
from ekiden.cli.options import ALL_ROOMS, Resolved, settings_options
from ekiden.errors import UserError
from ekiden.outlets import keep_going

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

    from ekiden.config import LedgerConfig, ServerConfig
    from ekiden.dashboard.ports import Evaluations, PagePorts, Releases
    from ekiden.engine.interface import Engine
    from ekiden.evidence.follow import Follower
    from ekiden.guard.runtime import Guard
    from ekiden.models.load import ModelDescription

Made = TypeVar("Made")


@click.command()
@settings_options(*ALL_ROOMS)
def command(resolved: Resolved) -> None:
    """Serve a model over an OpenAI-compatible HTTP API."""
    keep_going()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is an application that can read its files again
    # The engine's process imports what it needs while this one checks the settings.
    spawned = spawn_early(resolved.config)
    from ekiden.api.auth import check_bind
    from ekiden.api.binding import bind, check_tls
    from ekiden.api.keys import KeyStore
    from ekiden.build.engines import load_engine
    from ekiden.build.model import default_sampling, describe_model
    from ekiden.cli.loading import find_model
    from ekiden.engine.process import EngineClient
    from ekiden.guard.assemble import make_guard, read_rules
    from ekiden.ledger.retention import remove_run
    from ekiden.models.template_worker import start_worker

    config = resolved.config
    server = config.server
    logging.basicConfig(level=server.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    # Mistakes in the settings are told before a model is fetched.
    check_bind(server)
    KeyStore.of(server)
    if server.ssl_certfile is not None:
        check_tls(server.ssl_certfile, server.ssl_keyfile)
    bind(server.host, server.port).close()
    rules = read_rules(config)
    follower = _span_follower(config.ledger, lambda: engine.ledger_path)
    files = find_model(config)
    engine = EngineClient(functools.partial(load_engine, sources=resolved.sources), config, spawned=spawned)
    # Imported while the engine's process is busy loading.
    from ekiden.api.server import serve

    model: ModelDescription
    guard: Guard | None = None
    started = False

    async def start() -> None:
        nonlocal model, guard
        # The engine's process loads the model while this one reads what the API needs of it.
        _, model = await asyncio.gather(engine.start(), _apart(functools.partial(describe_model, config, files)))
        if model.chat_template is not None:
            start_worker()
        if follower is not None:
            follower.start()
        loop = asyncio.get_running_loop()
        guard = make_guard(config, rules, engine, lambda: loop)
        if config.guard.guard != "off":
            guard.start()
        await _promotions(server, engine, guard)

    async def stop() -> None:
        if guard is not None:
            await asyncio.to_thread(guard.stop)
        await engine.stop()
        if follower is not None:
            await asyncio.to_thread(follower.stop)
        if not started and engine.ledger_path is not None:
            remove_run(engine.ledger_path)  # of an engine that was ready before the start failed

    def make_app() -> "FastAPI":
        from ekiden.api.app import create_app

        nonlocal started
        assert guard is not None
        page = _page_ports(server, engine, asyncio.get_running_loop(), guard)
        app = create_app(engine, model.tokenizer, model.chat_template, config, default_sampling(model), guard, page)
        started = True
        return app

    status = serve(
        make_app, server, start=start, stop=stop, read_config=lambda: resolved.again().config, hurry=engine.hurry
    )
    raise click.exceptions.Exit(status)


def _page_ports(
    settings: "ServerConfig", engine: "Engine", loop: asyncio.AbstractEventLoop, guard: "Guard"
) -> "PagePorts":
    """Evaluations and releases, whose rooms are imported when the page first asks for them."""
    from ekiden.dashboard.ports import PagePorts

    @functools.cache
    def evaluations() -> "Evaluations":
        from ekiden.evaluation.report.shelf import Shelf

        return Shelf(Path(settings.evaluations_dir).expanduser())

    @functools.cache
    def releases() -> "Releases":
        from ekiden.guard.people import People
        from ekiden.release.desk import ReleaseDesk
        from ekiden.release.folder import release_folder
        from ekiden.release.state import Place

        place = Place(address=settings.address, model=engine.card.model_id)
        return ReleaseDesk(release_folder(settings.release_dir), engine, loop, People(guard), place)

    return PagePorts(evaluations=evaluations, releases=releases)


async def _promotions(settings: "ServerConfig", engine: "Engine", guard: "Guard") -> None:
    """What releases have promoted on this server comes into force again. What does not is an error in the log, and a
    decision in the guard's state and in the ledger."""
    from ekiden.release.folder import release_folder

    folder = release_folder(settings.release_dir)
    if settings.address is None or not folder.is_dir():
        return
    from ekiden.release.promotions import left_out, stand
    from ekiden.release.state import Place

    place = Place(address=settings.address, model=engine.card.model_id)
    faults = await stand(engine, folder, place) if settings.promotions else await left_out(folder, place)
    for fault in faults:
        logging.getLogger(__name__).error("%s", fault)
        await asyncio.to_thread(guard.tell, "a promoted release is not in force", fault, who="release")


async def _apart(work: "Callable[[], Made]") -> "Made":
    """What ``work`` gives, in a thread that the end of the process does not wait for: hashing a large model takes long,
    and a start may be given up meanwhile."""
    done: concurrent.futures.Future[Made] = concurrent.futures.Future()

    def run() -> None:
        done.set_running_or_notify_cancel()  # from now on nobody who stops waiting can cancel it
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is waited for
            done.set_exception(error)

    threading.Thread(target=run, name="ekiden-describe", daemon=True).start()
    return await asyncio.wrap_future(done)


def _span_follower(settings: "LedgerConfig", ledger_path: "Callable[[], Path | None]") -> "Follower | None":
    """Sends a span for each recorded request to the endpoint of the settings; None when there is no endpoint."""
    if settings.otlp_endpoint is None:
        return None
    from ekiden.evidence.extras import ExportError
    from ekiden.evidence.follow import Follower
    from ekiden.evidence.spans import otlp_exporter

    if not settings.ledger:
        raise UserError("spans are made from the ledger; leave out --no-ledger, or --otlp-endpoint")
    try:
        return Follower(ledger_path, otlp_exporter(settings.otlp_endpoint))
    except ExportError as error:
        raise UserError(f"--otlp-endpoint: {error}") from error
