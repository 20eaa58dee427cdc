"""``ekiden bench``: what the kernels, the engine, a server and peers do with the same work, and how well.

Options mean the same in every bench. Ratios are only worth something between figures of one run on a quiet machine.
"""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import click
import uvloop

from ekiden.build.progress import progress
from ekiden.cli.bench_options import ABOVE_ZERO, JSON, LOAD, shaped
from ekiden.cli.bench_peer import peer
from ekiden.cli.bench_quality import quality
from ekiden.cli.figures_table import print_figures, table_of
from ekiden.cli.loading import load_model
from ekiden.cli.options import ENGINE_ROOMS, Resolved, settings_options
from ekiden.cli.own_server import own_server, refuse_server_settings
from ekiden.cli.terminal import out, print_json
from ekiden.config import ORDERS
from ekiden.evaluation.benches.engine import Shape, bench_engine, bench_scheduler, lineage, sized
from ekiden.evaluation.benches.pressure import BENCHES
from ekiden.evaluation.benches.raw import bench_raw
from ekiden.evaluation.benches.serve import bench_serve
from ekiden.evaluation.load.target import Target
from ekiden.measure.figures import Figures


@click.group()
def command() -> None:
    """Measure the backend, the engine or any OpenAI-compatible server."""


def _report(title: str, figures: Figures, as_json: bool) -> None:
    if as_json:
        print_json(figures)
    else:
        print_figures(out(), title, figures)


@command.command()
@shaped()
def raw(resolved: Resolved, shape: Shape, as_json: bool) -> None:
    """The backend's bare loop: prefill, then greedy decode passes of all rows, with no engine around them."""
    config = sized(resolved.config, shape.rows)
    parts = load_model(config, resolved.sources)
    figures = bench_raw(parts.runner, config, shape) | {"lineage": lineage(parts.card, shape, config)}
    _report(f"bench raw: {shape.rows} rows", figures, as_json)


@command.command()
@shaped(*LOAD)
def engine(resolved: Resolved, shape: Shape, as_json: bool) -> None:
    """The whole engine in this process: what scheduling and sampling add to the bare loop."""
    config = sized(resolved.config, shape.rows)
    parts = load_model(config, resolved.sources)
    with progress("bench engine", shape.requests) as advance:
        figures = bench_engine(parts, config, shape, on_finish=advance)
    _report(f"bench engine: {shape.rows} rows, {shape.requests} requests", figures, as_json)


@command.command()
@click.option("--url", help="an OpenAI-compatible server; without it one is started here, and stopped again")
@click.option("--model-id", help="the model to ask for; default: the first that the server lists")
@click.option("--api-key", "key", envvar="EKIDEN_API_KEY", help="bearer token of the server")
@click.option("--timeout", type=float, default=300.0, help="seconds for one request  [default: 300]")
@click.option("--warm-up", type=click.IntRange(min=0), default=2, help="requests before the run  [default: 2]")
@shaped(*LOAD)
def serve(resolved: Resolved, shape: Shape, as_json: bool, url: str | None, key: str | None, **options: Any) -> None:
    """A server over HTTP: closed loop of --rows streams (or --concurrency), or open loop with --rate."""
    if shape.concurrency is None and shape.rate is None:
        shape = replace(shape, concurrency=shape.rows)

    if url is not None:
        refuse_server_settings(resolved)
    server = own_server(sized(resolved.config, shape.rows)) if url is None else nullcontext(url)
    # The load shares its cores with the server, so it takes the event loop that costs least.
    with server as address, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(bench_serve(Target.parse(address, api_key=key), shape, **options))
    loop = f"{shape.rate:g} requests/s" if shape.rate else f"{shape.concurrency} streams"
    _report(f"bench serve: {loop}, {shape.requests} requests", figures, as_json)
    if figures["failures"]:
        raise click.exceptions.Exit(1)


@command.command()
@click.option("--running", "rows", type=ABOVE_ZERO, default=512, help="sequences that run  [default: 512]")
@click.option("--waiting", type=click.IntRange(min=0), default=100_000, help="requests that wait  [default: 100000]")
@click.option("--steps", type=ABOVE_ZERO, default=300, help="steps measured  [default: 300]")
@click.option("--scheduling-policy", "order", type=click.Choice(ORDERS), default="fcfs", help="[default: fcfs]")
@click.option("--tenants", type=ABOVE_ZERO, default=1, help="whose requests they are, in turns  [default: 1]")
@click.option(
    "--speculation", type=click.Choice(("ngram", "none")), default="ngram", help="look for drafts  [default: ngram]"
)
@click.option("--seed", type=int, default=0, help="[default: 0]")
@JSON
def scheduler(waiting: int, as_json: bool, **options: Any) -> None:
    """Our own work per step, on the fake model; a hundredth of the queue is shown beside it: it must cost the same."""
    few, many = (bench_scheduler(waiting=count, **options) for count in (waiting // 100, waiting))
    if as_json:
        print_json({**many, "with_fewer_waiting": few})
        return
    for figures in (few, many):
        print_figures(out(), f"bench scheduler: {figures['running']} running, {figures['waiting']:,} waiting", figures)


@command.command()
@settings_options(*ENGINE_ROOMS, model_argument=False)
@click.option(
    "--kind", "kinds", type=click.Choice(list(BENCHES)), multiple=True, help="which; may be repeated  [default: all]"
)
@JSON
def pressure(resolved: Resolved, kinds: tuple[str, ...], as_json: bool) -> None:
    """Long prompts beside a stream, a flooding tenant, five times the capacity, a shared beginning. Takes minutes."""
    parts = load_model(resolved.config, resolved.sources)
    figures: dict[str, Figures] = {}
    for kind in kinds or BENCHES:
        figures[kind] = BENCHES[kind](parts, resolved.config)
        if not as_json:
            told = {n: f"{value:.3f}" if isinstance(value, float) else str(value) for n, value in figures[kind].items()}
            out().print(table_of((kind, ""), told.items()))
    if as_json:
        print_json(figures)


for added in (peer, quality):
    command.add_command(added)
