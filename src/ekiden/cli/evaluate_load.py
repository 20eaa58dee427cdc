"""``ekiden evaluate load`` and ``ekiden evaluate sweep``: one workload on an engine or a server, at one rate or many.

Without ``--url`` a server of our own is started and stopped again; ``--in-process`` leaves HTTP out and sees the
engine's steps. Workloads are those of the dev data: what confirms is read by ``ekiden evaluate confirm`` only.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from ekiden.build.model import load_described
from ekiden.build.progress import progress
from ekiden.cli.evaluate_workloads import read_options
from ekiden.cli.figures_table import NOT_ESTIMABLE, print_figures, table_of
from ekiden.cli.loading import describe_model
from ekiden.cli.options import ENGINE_ROOMS, Resolved, settings_options
from ekiden.cli.own_server import own_server, refuse_server_settings
from ekiden.cli.terminal import err, out, print_json
from ekiden.errors import UserError
from ekiden.evaluation.benches.serve import first_model, get_json
from ekiden.evaluation.load.engine_subject import EngineSubject
from ekiden.evaluation.load.run_figures import run_figures
from ekiden.evaluation.load.server_subject import TENANT_HEADER, ServerSubject
from ekiden.evaluation.load.subject import Subject
from ekiden.evaluation.load.sweep import Sweep, SweepRun
from ekiden.evaluation.load.sweep import sweep as run_sweep
from ekiden.evaluation.load.target import Target
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.workloads.offer import Workload
from ekiden.evaluation.workloads.realise import realise
from ekiden.evaluation.workloads.sources import SOURCES, blocks_available, make
from ekiden.evaluation.workloads.spec import WorkloadSpec
from ekiden.models.load import ModelDescription

POSITIVE = click.FloatRange(min=0, min_open=True)
_CONTEXT = 2048
"""Tokens of a server's context where it does not tell: prompts are cut to that."""
_OPTIONS = (
    click.option("--source", type=click.Choice(list(SOURCES)), required=True, help="where the requests come from"),
    click.option("--rate", type=POSITIVE, default=1.0, help="requests a second; a sweep begins here  [default: 1]"),
    click.option("--seconds", type=POSITIVE, default=30.0, help="how long requests arrive  [default: 30]"),
    click.option("--length-scale", type=POSITIVE, default=1.0, help="factor of all lengths  [default: 1]"),
    click.option("--change", "changes", multiple=True, metavar="CHANGE", help="a change of premise; may be repeated"),
    click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="an option of the source"),
    click.option("--ttft", type=POSITIVE, default=2.0, help="objective: seconds to the first token  [default: 2]"),
    click.option("--tpot", type=POSITIVE, default=0.2, help="objective: seconds a further token  [default: 0.2]"),
    click.option("--url", help="an OpenAI-compatible server; without it one is started here, and stopped again"),
    click.option("--in-process", is_flag=True, help="the engine in this process, without HTTP"),
    click.option("--model-id", help="the model to ask for; default: the first that the server lists"),
    click.option("--api-key", "key", envvar="EKIDEN_API_KEY", help="bearer token of the server"),
    click.option("--timeout", type=POSITIVE, default=300.0, help="seconds for one request  [default: 300]"),
    click.option("--token-ids", is_flag=True, help="ask a server for the token ids of answers"),
    click.option("--json", "as_json", is_flag=True, help="print one JSON object"),
)


def _asked(command: Callable[..., None]) -> Any:
    """Give a command the settings of the engine and all that says what to offer, and to whom.

    It is called with ``resolved``, ``spec`` and ``objectives`` in place of the options that make them, and with
    ``where``, which has those that :func:`_subject` takes.
    """

    @functools.wraps(command)
    def wrapper(resolved: Resolved, changes: Sequence[str], options: Sequence[str], **rest: Any) -> None:
        given = {name: rest.pop(name) for name in ("source", "rate", "seconds", "length_scale")}
        source = SOURCES[given["source"]]
        spec = WorkloadSpec(
            name=source.name, kind=source.kind, change=list(changes), options=read_options(options), **given
        )
        objectives = Objectives(ttft=rest.pop("ttft"), tpot=rest.pop("tpot"), attainment=rest.pop("attainment", 0.99))
        names = ("url", "in_process", "model_id", "key", "timeout", "token_ids")
        where = {name: rest.pop(name) for name in names}
        if where["url"] is not None and where["in_process"]:
            raise UserError("--url and --in-process exclude each other; leave one out")
        command(resolved=resolved, spec=spec, objectives=objectives, where=where, **rest)

    decorated: Any = wrapper
    for option in reversed((settings_options(*ENGINE_ROOMS, "limits", "ledger", model_argument=False), *_OPTIONS)):
        decorated = option(decorated)
    return decorated


@click.command()
@click.option("--concurrency", type=click.IntRange(min=1), help="a closed loop of so many in place of the arrivals")
@_asked
def load(
    resolved: Resolved,
    spec: WorkloadSpec,
    objectives: Objectives,
    where: dict[str, Any],
    concurrency: int | None,
    as_json: bool,
) -> None:
    """Offer one workload at one rate and show what came of it. Exit status 1 when the run is void."""
    workload = make(spec, split="dev", block=0, seed=resolved.config.engine.seed)
    with (
        _subject(resolved, objectives, concurrency=concurrency, **where) as subject,
        progress("load", len(workload.offers)) as advance,
    ):
        run = subject.serve(workload, on_answer=advance)
    figures = run_figures(run, objectives)
    if as_json:
        print_json(figures | {"made": workload.made, "steps_in_all": msgspec.to_builtins(run.steps)})
    else:
        rate = f"{spec.rate:g} requests/s" if concurrency is None else f"closed loop of {concurrency}"
        print_figures(out(), f"load: {spec.source}, {rate}, {len(workload.offers)} requests", figures)
        if run.run_id is not None:
            out().print(f"\nRecorded as run {run.run_id}: `ekiden explain ID` tells of any request.", soft_wrap=True)
    if run.void is not None:
        err().print(f"This run is void: {run.void}.", soft_wrap=True)
        raise click.exceptions.Exit(1)


@click.command()
@click.option("--attainment", type=click.FloatRange(0, 1), default=0.99, help="share to be good  [default: 0.99]")
@click.option("--precision", type=POSITIVE, default=0.1, help="relative width at which the search ends  [default: 0.1]")
@click.option("--runs", type=click.IntRange(min=1), default=3, help="most runs at one rate  [default: 3]")
@click.option(
    "--least-requests",
    type=click.IntRange(min=1),
    default=20,
    help="requests of a run: at low rates it lasts longer than --seconds  [default: 20]",
)
@click.option(
    "--state", type=click.Path(dir_okay=False, path_type=Path), help="file that remembers runs, so as to go on later"
)
@_asked
def sweep(
    resolved: Resolved,
    spec: WorkloadSpec,
    objectives: Objectives,
    where: dict[str, Any],
    precision: float,
    runs: int,
    least_requests: int,
    state: Path | None,
    as_json: bool,
) -> None:
    """Find the highest rate at which enough answers are good. Exit status 1 where none was found."""
    seed = resolved.config.engine.seed

    def workload_at(rate: float, index: int) -> Workload:
        asked = msgspec.structs.replace(spec, rate=rate, seconds=max(spec.seconds, least_requests / rate))
        there = blocks_available(asked, "dev") or index + 1
        return make(asked, split="dev", block=index % there, seed=seed + index // there)

    def tell(run: SweepRun) -> None:
        err().print(f"{run.rate:.3g} requests/s: {run.good} of {run.offered} good", soft_wrap=True)

    made_with = {
        "workload": msgspec.to_builtins(spec),
        "seed": seed,
        "least_requests": least_requests,
        **_arm(resolved, where),
    }
    with _subject(resolved, objectives, cut=True, **where) as subject:
        found = run_sweep(
            subject, workload_at, objectives,
            first=spec.rate, precision=precision, least=1.0 / spec.seconds, runs=runs, state=state, made_with=made_with,
            watch=progress, on_run=tell,
        )  # fmt: skip
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _show(found, objectives)
    if found.highest is None:
        raise click.exceptions.Exit(1)


def _arm(resolved: Resolved, where: dict[str, Any]) -> dict[str, Any]:
    """What is swept, so that a state file is not taken for that of another arm."""
    if where["url"] is not None:
        return {"url": where["url"], "model_id": where["model_id"]}
    config = resolved.config
    rooms = {room: getattr(config, room) for room in (*ENGINE_ROOMS, "limits")}
    return {"in_process": where["in_process"], **msgspec.to_builtins(rooms, enc_hook=str)}


def _show(found: Sweep, objectives: Objectives) -> None:
    columns = ("rate/s", "runs", "offered", "good", "attainment", "95 %", "goodput/s", "p99 TTFT", "holds")
    rows = [
        (
            f"{point.rate:.3g}",
            f"{point.runs}",
            f"{point.offered:,}",
            f"{point.good:,}",
            f"{point.attainment:.2%}",
            f"{100 * point.low:.0f}-{100 * point.high:.0f} %",
            f"{point.goodput:.3f}",
            NOT_ESTIMABLE if point.p99_ttft is None else f"{point.p99_ttft:.3f} s",
            f"{'yes' if point.holds else 'no'}{'' if point.decided else '?'}",
        )
        for point in found.points
    ]
    console = out()
    console.print(table_of(columns, rows))
    highest = "none was found" if found.highest is None else f"{found.highest:.3g} requests/s"
    console.print(f"\nHighest rate with attainment of {found.target:.0%} or more: [bold]{highest}[/bold]")
    console.print(
        f"attainment = good / all offered; good = whole, TTFT within {objectives.ttft:g} s, TPOT within "
        f"{objectives.tpot:g} s; goodput = good / duration of the arrivals; 95 %: Wilson interval of the attainment; "
        "with a ? the interval holds the target, and the attainment itself was taken",
        style="dim",
        soft_wrap=True,
    )


@contextmanager
def _subject(
    resolved: Resolved,
    objectives: Objectives,
    *,
    url: str | None,
    in_process: bool,
    model_id: str | None,
    key: str | None,
    timeout: float,
    token_ids: bool,
    concurrency: int | None = None,
    cut: bool = False,
) -> Iterator[Subject]:
    """What the options name, ready to serve, and closed at the end."""
    config = resolved.config
    if in_process:
        model = describe_model(config)
        parts = load_described(config, model, resolved.sources)
        try:
            yield EngineSubject(
                parts, config, objectives=objectives, prompts=_prompts(model, parts.card.max_model_len),
                ledger=config.ledger.ledger, cut=cut, concurrency=concurrency,
            )  # fmt: skip
        finally:
            parts.runner.close()
        return

    def served(address: str, model: ModelDescription | None) -> ServerSubject:
        target = Target.parse(address, api_key=key)
        return ServerSubject(
            target, model_id if model_id is not None else first_model(target),
            objectives=objectives, prompts=_server_prompts(model, _context_of(target)),
            end_token=None if model is None else min(model.tokenizer.eos_token_ids, default=None),
            token_ids=token_ids, timeout=timeout, concurrency=concurrency, cut=cut,
        )  # fmt: skip

    if url is None:
        with own_server(config, "--tenant-header", TENANT_HEADER) as address:
            yield served(address, describe_model(config))
    else:
        refuse_server_settings(resolved)
        # Where the server's model is named, its prompts are made here; else texts are left to the server.
        named = resolved.sources.get("model.model", "").startswith("--")
        yield served(url, describe_model(config) if named else None)


def _prompts(model: ModelDescription, max_model_len: int) -> Callable[[Workload], Sequence[Sequence[int]]]:
    return lambda workload: (
        realise(workload, model.tokenizer, chat_template=model.chat_template, max_model_len=max_model_len).prompts
    )


def _server_prompts(
    model: ModelDescription | None, max_model_len: int
) -> Callable[[Workload], Sequence[Sequence[int] | str]]:
    """Token ids where the model is known; else made prompts as ids that every vocabulary has, and texts as they are."""
    if model is not None:
        return _prompts(model, max_model_len)

    def of(workload: Workload) -> list[Sequence[int] | str]:
        made = [offer for offer in workload.offers if offer.text is None]
        without = msgspec.structs.replace(workload, offers=tuple(made))
        ids = dict(zip((o.id for o in made), realise(without, max_model_len=max_model_len).prompts, strict=True))
        return [
            ids[offer.id] if offer.text is None else "\n\n".join(filter(None, (offer.system, offer.text)))
            for offer in workload.offers
        ]

    return of


def _context_of(target: Target) -> int:
    """Tokens that the server's first model holds, where it tells."""
    models = get_json(target, "/models").get("data") or [{}]
    told = models[0].get("max_model_len")
    return told if isinstance(told, int) else _CONTEXT
