"""``ekiden bench``: what the kernels, the engine, a server and a peer do with the same work.

Options mean the same in every bench. Ratios are only worth something between figures of one run on a quiet machine.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ekiden.cli.options import ENGINE_ROOMS, Resolved, settings_options
from ekiden.cli.terminal import out, print_json, progress
from ekiden.config import ORDERS
from ekiden.errors import UserError
from ekiden.evaluation.bench import Figures, Shape

if TYPE_CHECKING:
    from ekiden.config import Config
    from ekiden.engine.parts import EngineParts

Command = TypeVar("Command", bound=Callable[..., Any])
ABOVE_ZERO = click.IntRange(min=1)


@click.group()
def command() -> None:
    """Measure the backend, the engine or any OpenAI-compatible server."""


def _shape_options(command: Command) -> Command:
    """The options that every bench shares; the command is called with ``shape`` and ``as_json``."""
    options = [
        click.option("--rows", type=ABOVE_ZERO, default=64, help="sequences that run at once  [default: 64]"),
        click.option("--prompt-tokens", type=ABOVE_ZERO, default=128, help="tokens of each prompt  [default: 128]"),
        click.option("--output-tokens", type=ABOVE_ZERO, default=64, help="tokens of each answer  [default: 64]"),
        click.option("--json", "as_json", is_flag=True, help="print one JSON object"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _load_options(command: Command) -> Command:
    options = [
        click.option("--requests", type=ABOVE_ZERO, help="requests in all  [default: as many as rows]"),
        click.option("--concurrency", type=ABOVE_ZERO, help="closed loop: so many requests in flight"),
        click.option(
            "--rate",
            type=click.FloatRange(min=0, min_open=True),
            help="open loop: so many arrivals a second on average (Poisson)",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _sampling_options(command: Command) -> Command:
    command = click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="nucleus")(command)
    return click.option("--temperature", type=click.FloatRange(min=0), default=0.0, help="0 is greedy  [default: 0]")(
        command
    )


def _shape(resolved: Resolved, rows: int, requests: int | None, **rest: Any) -> Shape:
    if rest.get("concurrency") is not None and rest.get("rate") is not None:
        raise UserError("--concurrency and --rate exclude each other: a closed loop has no arrivals of its own")
    return Shape(rows=rows, requests=requests or rows, seed=resolved.config.engine.seed, **rest)


def _report(title: str, figures: Figures, as_json: bool) -> None:
    from ekiden.cli.figures_table import print_figures

    if as_json:
        print_json(figures)
    else:
        print_figures(out(), title, figures)


@command.command()
@settings_options(*ENGINE_ROOMS, model_argument=False, skip=("max_num_seqs",))
@_shape_options
def raw(resolved: Resolved, rows: int, prompt_tokens: int, output_tokens: int, as_json: bool) -> None:
    """The backend's bare loop: prefill, then greedy decode passes of all rows, with no engine around them."""
    from ekiden.cli.loading import load_model
    from ekiden.evaluation.bench import lineage, sized
    from ekiden.evaluation.bench_raw import TooManyRows, bench_raw

    shape = _shape(resolved, rows, None, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    config = sized(resolved.config, rows)
    parts = load_model(config, resolved.sources)
    try:
        figures = bench_raw(parts.runner, config, shape)
    except TooManyRows as error:
        raise UserError(str(error)) from error
    figures["lineage"] = lineage(parts.card, shape, config)
    _report(f"bench raw: {rows} rows", figures, as_json)


@command.command()
@settings_options(*ENGINE_ROOMS, model_argument=False, skip=("max_num_seqs",))
@_shape_options
@_load_options
@_sampling_options
def engine(resolved: Resolved, as_json: bool, **shape_options: Any) -> None:
    """The whole engine in this process: what scheduling and sampling add to the bare loop."""
    from ekiden.cli.loading import load_model
    from ekiden.evaluation.bench import bench_engine, sized

    shape = _shape(resolved, **shape_options)
    config = sized(resolved.config, shape.rows)
    parts = load_model(config, resolved.sources)
    with progress("bench engine", shape.requests) as advance:
        figures = bench_engine(parts, config, shape, on_finish=advance)
    _report(f"bench engine: {shape.rows} rows, {shape.requests} requests", figures, as_json)


@command.command()
@settings_options(*ENGINE_ROOMS, model_argument=False, skip=("max_num_seqs",))
@click.option("--url", help="an OpenAI-compatible server; without it one is started here, and stopped again")
@click.option("--model-id", help="the model to ask for; default: the first that the server lists")
@click.option("--api-key", "key", envvar="EKIDEN_API_KEY", help="bearer token of the server")
@click.option("--timeout", type=float, default=300.0, help="seconds for one request  [default: 300]")
@click.option("--warm-up", type=click.IntRange(min=0), default=2, help="requests before the run  [default: 2]")
@_shape_options
@_load_options
@_sampling_options
def serve(
    resolved: Resolved,
    url: str | None,
    model_id: str | None,
    key: str | None,
    timeout: float,
    warm_up: int,
    as_json: bool,
    **shape_options: Any,
) -> None:
    """A server over HTTP: closed loop of --rows streams (or --concurrency), or open loop with --rate."""
    import uvloop

    from ekiden.cli.own_server import own_server
    from ekiden.evaluation.bench import sized
    from ekiden.evaluation.bench_serve import bench_serve
    from ekiden.evaluation.sse_client import Target, TargetError

    shape = _shape(resolved, **shape_options)
    if shape.concurrency is None and shape.rate is None:
        shape = replace(shape, concurrency=shape.rows)
    if url is not None:
        _refuse_server_settings(resolved)

    def run(target: Target) -> Figures:
        # The load shares its cores with the server, so it takes the loop that costs least.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(bench_serve(target, shape, model_id=model_id, timeout=timeout, warm_up=warm_up))

    try:
        if url is None:
            with own_server(sized(resolved.config, shape.rows)) as own_url:
                figures = run(Target.parse(own_url, api_key=key))
        else:
            figures = run(Target.parse(url, api_key=key))
    except TargetError as error:
        raise UserError(str(error)) from error
    loop = f"{shape.rate:g} requests/s" if shape.rate else f"{shape.concurrency} streams"
    _report(f"bench serve: {loop}, {shape.requests} requests", figures, as_json)
    if figures["failures"]:
        raise click.exceptions.Exit(1)


def _refuse_server_settings(resolved: Resolved) -> None:
    """--batching and the like cannot reach into a server that is running already."""
    given = [
        source
        for key, source in resolved.sources.items()
        if source.startswith("--") and key not in ("engine.seed", "model.model")
    ]
    if given:
        raise UserError(f"{', '.join(given)} cannot be set on the server behind --url; start it with them instead")


@command.command()
@click.option("--running", type=ABOVE_ZERO, default=512, help="sequences that run  [default: 512]")
@click.option("--waiting", type=click.IntRange(min=0), default=100_000, help="requests that wait  [default: 100000]")
@click.option("--steps", type=ABOVE_ZERO, default=300, help="steps measured  [default: 300]")
@click.option("--scheduling-policy", "order", type=click.Choice(ORDERS), default="fcfs", help="[default: fcfs]")
@click.option("--tenants", type=ABOVE_ZERO, default=1, help="whose requests they are, in turns  [default: 1]")
@click.option("--seed", type=int, default=0, help="[default: 0]")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def scheduler(running: int, waiting: int, steps: int, order: str, tenants: int, seed: int, as_json: bool) -> None:
    """Our own work per step, on the fake model; a hundredth of the queue is shown beside it: it must cost the same."""
    from ekiden.build.core import fake_core
    from ekiden.evaluation.bench import bench_scheduler

    few, many = (
        bench_scheduler(fake_core, rows=running, waiting=count, steps=steps, seed=seed, order=order, tenants=tenants)
        for count in (waiting // 100, waiting)
    )
    if as_json:
        print_json({**many, "with_fewer_waiting": few})
        return
    for figures in (few, many):
        _report(f"bench scheduler: {running} running, {figures['waiting']:,} waiting", figures, as_json=False)


@command.command()
@settings_options(*ENGINE_ROOMS, model_argument=False, skip=("max_num_seqs",))
@click.option("--rounds", type=ABOVE_ZERO, default=2, help="times ours, peer, peer, ours  [default: 2]")
@click.option("--requests", type=ABOVE_ZERO, help="requests of a run  [default: as many as rows]")
@click.option(
    "--peer-settings",
    type=click.Choice(("defaults", "ours")),
    default="defaults",
    help="leave the peer as it comes, or give it our kernel settings, rows and token budget  [default: defaults]",
)
@_shape_options
def peer(
    resolved: Resolved,
    rounds: int,
    requests: int | None,
    peer_settings: str,
    as_json: bool,
    **shape_options: Any,
) -> None:
    """OpenVINO GenAI's continuous batching on the same weights, in turns with ours."""
    from rich.table import Table

    from ekiden.backends.openvino.genai_peer import GenAIPeer
    from ekiden.build.model import load_described
    from ekiden.cli.loading import describe_model
    from ekiden.evaluation.bench import sized
    from ekiden.evaluation.bench_peer import bench_peer, pair_rows

    shape = _shape(resolved, requests=requests, **shape_options)
    config = sized(resolved.config, shape.rows)
    model = describe_model(config)
    parts = load_described(config, model, resolved.sources)
    with (
        GenAIPeer(model.description, model.files, config, tuned=peer_settings == "ours") as other,
        progress("bench peer", 4 * rounds, "runs") as advance,
    ):
        figures = bench_peer(parts, config, shape, other.generate, rounds=rounds, on_run=advance)
        figures["peer"] = other.lineage
    if as_json:
        print_json(figures)
        return
    console = out()
    table = Table("pair", "ours tok/s", "peer tok/s", "ratio", box=None, pad_edge=False)
    for row in pair_rows(figures):
        table.add_row(*row)
    console.print(table)
    console.print(
        f"\nratio {figures['ratio']:.2f} (geometric mean over pairs of ours / peer, in (prompt + output tokens) / "
        f"duration)\nthe same tokens in {figures['same_tokens']} of {figures['compared_sequences']} sequences",
        soft_wrap=True,
    )


_PRESSURES = ("interference", "flood", "overload", "prefix")


@command.command()
@settings_options(*ENGINE_ROOMS, model_argument=False)
@click.option(
    "--kind", "kinds", type=click.Choice(_PRESSURES), multiple=True, help="which; may be repeated  [default: all]"
)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def pressure(resolved: Resolved, kinds: tuple[str, ...], as_json: bool) -> None:
    """Long prompts beside a stream, a flooding tenant, five times the capacity, a shared beginning. Takes minutes."""
    from rich.table import Table

    from ekiden.cli.loading import load_model
    from ekiden.evaluation import pressure as benches

    run: dict[str, Callable[[EngineParts, Config], Figures]] = {
        "interference": benches.bench_interference,
        "flood": benches.bench_flood,
        "overload": benches.bench_overload,
        "prefix": benches.bench_prefix,
    }
    parts = load_model(resolved.config, resolved.sources)
    figures: dict[str, Figures] = {}
    for kind in kinds or _PRESSURES:
        figures[kind] = run[kind](parts, resolved.config)
        if not as_json:
            table = Table(kind, "", box=None, pad_edge=False)
            for name, value in figures[kind].items():
                table.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
            out().print(table)
    if as_json:
        print_json(figures)
