"""``ekiden bench peer``: other engines on the same weights and prompts, in turns with ours."""

from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

import click

from ekiden.build.model import load_described
from ekiden.build.progress import progress
from ekiden.cli.bench_options import ABOVE_ZERO, REQUESTS, shaped
from ekiden.cli.bench_quality import print_quality
from ekiden.cli.figures_table import NOT_ESTIMABLE
from ekiden.cli.loading import describe_model
from ekiden.cli.options import Resolved
from ekiden.cli.own_server import ending_in_order, own_server
from ekiden.cli.terminal import out, plain_table, print_json
from ekiden.errors import UserError
from ekiden.evaluation.benches import quality as quality_bench
from ekiden.evaluation.benches.engine import Shape, lineage, sized
from ekiden.evaluation.benches.peer import OURS, Compared, HTTPLoad, in_process, over_http, quality_of
from ekiden.evaluation.benches.peers.arms import ARMS, Arm, Room, threads_of
from ekiden.evaluation.benches.peers.environments import Environments
from ekiden.evaluation.workloads.package_data import passages
from ekiden.measure.figures import Figures

WAYS = ("in-process", "http")
PROMPTS = 8
"""Greedy answers of each arm that are compared with float32's."""
LEAST_REQUESTS = 6
SHOWN = {
    "total_tokens_per_second": ("total tok/s", 1.0),
    "output_tokens_per_second": ("output tok/s", 1.0),
    "ttft_p50": ("TTFT p50 ms", 1000.0),
    "itl_p99": ("gap p99 ms", 1000.0),
}
Opened = TypeVar("Opened")
Show = Callable[[str, Compared], None]
"""Is given each comparison with its title."""


@click.command()
@click.option("--rounds", type=ABOVE_ZERO, default=2, help="times all arms forward, then backward  [default: 2]")
@click.option(
    "--peer", "wanted", type=click.Choice(list(ARMS)), multiple=True, help="which; may be repeated  [default: all]"
)
@click.option(
    "--way", "ways", type=click.Choice(WAYS), multiple=True, default=WAYS, help="how they are asked  [default: both]"
)
@click.option(
    "--clients",
    type=ABOVE_ZERO,
    multiple=True,
    default=(32, 1),
    help="over HTTP: streams at once; may be repeated  [default: 32, then 1]",
)
@click.option(
    "--http-requests",
    type=ABOVE_ZERO,
    help=f"over HTTP: requests of a pass  [default: twice the clients, at least {LEAST_REQUESTS}]",
)
@click.option("--quality/--no-quality", default=True, help="also how near each is to float32  [default: quality]")
@click.option("--peers", "folder", default=".venv-peers", help="their environments  [default: .venv-peers]")
@click.option("--timeout", type=float, default=300.0, help="over HTTP: seconds for one request  [default: 300]")
@click.option(
    "--peer-settings",
    type=click.Choice(("defaults", "ours")),
    default="defaults",
    help="leave GenAI as it comes, or give it our kernel settings, rows and token budget  [default: defaults]",
)
@shaped(REQUESTS)
def peer(
    resolved: Resolved,
    shape: Shape,
    as_json: bool,
    rounds: int,
    wanted: tuple[str, ...],
    ways: tuple[str, ...],
    clients: tuple[int, ...],
    http_requests: int | None,
    quality: bool,
    folder: str,
    timeout: float,
    peer_settings: str,
) -> None:
    """OpenVINO GenAI, vLLM and llama.cpp on the same weights and prompts, in turns with ours. Takes minutes.

    In process, a batch of --rows prompts; over HTTP, a closed loop of --clients streams and a lone one, with lognormal
    lengths. A peer that is not installed, or fails, is named with the reason.
    """
    environments = Environments(Path(folder))
    chosen = {name: ARMS[name] for name in wanted or ARMS}
    left_out = {name: reason for name, arm in chosen.items() if (reason := arm.missing(environments))}
    chosen = {name: arm for name, arm in chosen.items() if name not in left_out}
    description = describe_model(resolved.config)
    figures: Figures = {"left_out": left_out, "arms": {name: arm.about for name, arm in chosen.items()}}
    tables: dict[str, Compared] = {}

    def show(title: str, found: Compared) -> None:
        """As soon as it is there: the rest takes minutes."""
        tables[title] = found
        if not as_json:
            _show(title, found)

    room = Room(
        description=description,
        config=sized(resolved.config, shape.rows),
        environments=environments,
        rows=shape.rows,
        context=max(shape.prompt_tokens + shape.output_tokens, 2 * quality_bench.PASSAGE_TOKENS),
        threads=threads_of(resolved.config),
        tuned=peer_settings == "ours",
    )
    timed = rounds if "in-process" in ways else 0
    with ending_in_order():
        if timed or quality:
            figures |= _in_process(resolved, shape, room, chosen, show, rounds=timed, quality=quality)
        if "http" in ways:
            loads = [
                HTTPLoad(clients=each, requests=http_requests or max(2 * each, LEAST_REQUESTS), seed=shape.seed)
                for each in clients
            ]
            served = replace(room, config=sized(resolved.config, max(clients)), rows=max(clients))
            _http(served, chosen, loads, show, rounds=rounds, timeout=timeout)
    if as_json:
        print_json(figures | {"compared": {name: asdict(found) for name, found in tables.items()}})
        return
    if isinstance(rows := figures.get("quality"), dict):
        out().print()
        print_quality(rows)
    for name, reason in left_out.items():
        out().print(f"{name}: {reason}", soft_wrap=True)


def _in_process(
    resolved: Resolved, shape: Shape, room: Room, chosen: Mapping[str, Arm], show: Show, *,
    rounds: int, quality: bool,
) -> Figures:  # fmt: skip
    """Ours and the peers in process: their speeds, unless ``rounds`` is 0, and how near they are to float32."""
    figures: Figures = {}
    parts = load_described(room.config, room.description, resolved.sources)
    try:
        with ExitStack() as stack:
            peers, failures = _opened(stack, {name: arm.load(room) for name, arm in chosen.items()})
            figures["lineage"] = lineage(parts.card, shape, room.config)
            figures["peers"] = {name: engine.lineage for name, engine in peers.items()}
            if rounds:
                with progress("bench peer in process", _runs(rounds, peers), "runs") as advance:
                    found = in_process(parts, room.config, shape, peers, rounds=rounds, on_run=advance)
                found.failures |= failures
                show(f"in process, {shape.rows} rows of {shape.prompt_tokens} + {shape.output_tokens} tokens", found)
            if quality:
                material = quality_bench.material_for(
                    room.description, language="en", num_passages=quality_bench.FIRST_PASSAGES,
                    num_prompts=PROMPTS, context=room.context,
                )  # fmt: skip
                failed: dict[str, Figures] = {name: {"failure": reason} for name, reason in failures.items()}
                figures["quality"] = quality_of(parts, room.config, material, peers) | failed
    finally:
        parts.runner.close()
    return figures


def _http(
    room: Room, chosen: Mapping[str, Arm], loads: Sequence[HTTPLoad], show: Show, *, rounds: int, timeout: float
) -> None:
    """All servers run side by side, and only one is asked at a time."""
    room = replace(room, context=max(load.context for load in loads))
    texts = room.description.tokenizer.encode_batch(passages("en"), add_special_tokens=False)
    text = list(chain.from_iterable(texts))
    with ExitStack() as stack:
        ours = stack.enter_context(own_server(room.config))
        able = {name: arm.serve(room) for name, arm in chosen.items() if arm.serve is not None}
        peers, failures = _opened(stack, able)
        failures |= {name: "it has no server of its own" for name in chosen if name not in able}
        for load in loads:
            name = f"over HTTP, {load.clients} streams"
            with progress(f"bench peer {name}", _runs(rounds, peers), "runs") as advance:
                found = over_http({OURS: ours, **peers}, load, text, rounds=rounds, timeout=timeout, on_run=advance)
            found.failures |= failures
            show(f"{name}, {load.prompt_tokens} + {load.output_tokens} tokens on average", found)


def _runs(rounds: int, peers: Sized) -> int:
    """The runs of all arms, with the warm-up."""
    return (1 + 2 * rounds) * (1 + len(peers))


def _opened(
    stack: ExitStack, closed: Mapping[str, AbstractContextManager[Opened]]
) -> tuple[dict[str, Opened], dict[str, str]]:
    """What could be opened, and why the others could not."""
    opened: dict[str, Opened] = {}
    failures: dict[str, str] = {}
    for name, each in closed.items():
        try:
            opened[name] = stack.enter_context(each)
        except UserError as error:
            failures[name] = str(error)
    return opened, failures


def _show(title: str, found: Compared) -> None:
    """A row for each figure and arm: medians with their ranges over the passes, and the ratios within the passes."""
    arms = found.arms
    rows = [
        [words if name == OURS else "", name, *_cells(arm[figure], scale)]
        for figure, (words, scale) in SHOWN.items()
        for name, arm in arms.items()
        if figure in arm
    ]
    out().print(
        f"\n[bold]{title}[/bold]: medians of the passes, and ratios within the passes (over 1: ours is better)\n"
    )
    out().print(plain_table("", "", "median", "range", "ratio", "range", rows=rows, right=range(2, 6)))
    for name, arm in arms.items():
        if arm.get("same_tokens") is not None and name != OURS:
            out().print(f"{name}: the same tokens in {arm['same_tokens']} of {arm['compared_sequences']} answers")
        for count, words in (("failures", "requests failed"), ("wrong_lengths", "answers had another length")):
            if arm.get(count):
                out().print(f"{name}: {arm[count]} {words}")
    for name, reason in found.failures.items():
        out().print(f"{name}: not measured: {reason}", soft_wrap=True)


def _cells(figure: object, scale: float) -> list[str]:
    assert isinstance(figure, dict)
    low, middle, high = (f"{scale * figure[name]:,.0f}" for name in ("min", "median", "max"))
    found = [middle, f"{low} - {high}"]
    if (ratio := figure["ratio"]) is None:
        return [*found, NOT_ESTIMABLE, ""]
    return [*found, f"{ratio['mean']:.2f}", f"{ratio['min']:.2f} - {ratio['max']:.2f}"]
