"""``ekiden evaluate workloads``: which workloads there are, and what one of them looks like."""

from collections.abc import Sequence
from typing import Any

import click
import msgspec
from rich.console import Console

from ekiden.cli.terminal import out, plain_table, print_json
from ekiden.errors import UserError
from ekiden.evaluation.workloads.changes import CHANGES
from ekiden.evaluation.workloads.offer import Workload
from ekiden.evaluation.workloads.source import SPLITS, Option, Split
from ekiden.evaluation.workloads.sources import COMMON, SOURCES, blocks_available, make
from ekiden.evaluation.workloads.spec import WorkloadSpec
from ekiden.evaluation.workloads.statistics import Spread, WorkloadStatistics, statistics_of

MOST_TENANTS = 8


@click.command()
@click.argument("name", metavar="[SOURCE]", required=False, type=click.Choice(list(SOURCES)))
@click.option("--rate", type=float, default=1.0, help="mean requests a second  [default: 1]")
@click.option("--seconds", type=float, default=60.0, help="how long requests arrive  [default: 60]")
@click.option("--length-scale", type=float, default=1.0, help="factor of all lengths  [default: 1]")
@click.option("--change", "changes", multiple=True, metavar="CHANGE", help="a change of premise; may be repeated")
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="an option of the source; may be repeated"
)
@click.option("--split", type=click.Choice(SPLITS), default="dev", help="[default: dev]")
@click.option("--block", type=int, default=0, help="which block, counted from 0  [default: 0]")
@click.option("--seed", type=int, default=0, help="[default: 0]")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def workloads(
    name: str | None,
    rate: float,
    seconds: float,
    length_scale: float,
    changes: tuple[str, ...],
    options: tuple[str, ...],
    split: Split,
    block: int,
    seed: int,
    as_json: bool,
) -> None:
    """List what workloads can be made of, or show what one block of SOURCE looks like."""
    if name is None:
        print_json(_listed()) if as_json else _list(out())
        return
    spec = WorkloadSpec(
        name=name,
        source=name,
        kind=SOURCES[name].kind,
        seconds=seconds,
        rate=rate,
        length_scale=length_scale,
        change=list(changes),
        options=read_options(options),
    )
    workload = make(spec, split=split, block=block, seed=seed)
    figures, there = statistics_of(workload), blocks_available(spec, split)
    if as_json:
        told = {"statistics": msgspec.to_builtins(figures), "made": workload.made, "sources": workload.sources}
        print_json({"name": name, "kind": workload.kind.value, "blocks": there, **told})
    else:
        _show(out(), workload, figures, there)


def read_options(written: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` as a plan's ``options`` would hold them: values are JSON, or else text. Raises UserError."""
    read: dict[str, Any] = {}
    for each in written:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise UserError(f"--option is {each!r}; write NAME=VALUE, such as --option cv=0.5")
        try:
            read[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            read[name] = value
    return read


# --- the list


def _listed() -> dict[str, Any]:
    return {
        "sources": {
            source.name: {"kind": source.kind.value, "summary": source.summary, "options": _told(source.options)}
            for source in SOURCES.values()
        },
        "options_of_all": _told(COMMON),
        "changes": CHANGES,
    }


def _told(options: Sequence[Option]) -> dict[str, Any]:
    return {option.name: {"default": option.default, "meaning": option.meaning} for option in options}


def _list(console: Console) -> None:
    console.print("[bold]Sources[/bold]")
    rows = [(source.name, source.kind.value, source.summary) for source in SOURCES.values()]
    console.print(plain_table("", "", "", rows=rows, header=False))
    console.print("\n[bold]Changes of premise[/bold]")
    console.print(plain_table("", "", rows=CHANGES.items(), header=False))
    console.print("\nWith the name of a source: what one block of it looks like, and its options.")


# --- one block


def _show(console: Console, workload: Workload, figures: WorkloadStatistics, there: int | None) -> None:
    made, source = workload.made, SOURCES[workload.made["source"]]
    console.print(f"[bold]{source.name}[/bold] ({workload.kind.value}): {source.summary}\n")
    blocks = "as many blocks as one likes" if there is None else f"{there} blocks of this size"
    console.print(f"block {made['block']} of {made['split']}, seed {made['seed']}; there are {blocks}\n")
    console.print(plain_table("", "", rows=_counts(figures), header=False))
    spreads = [
        ("prompt tokens", figures.prompt_tokens),
        ("prompt characters", figures.prompt_characters),
        ("answer tokens", figures.output_tokens),
    ]
    rows = [(name, *_points(spread)) for name, spread in spreads if spread]
    console.print(plain_table("\nlengths", "\np50", "\np90", "\nmax", rows=rows, right=(1, 2, 3)))
    options = [
        (option.name, str(made["options"][option.name]), option.meaning) for option in (*source.options, *COMMON)
    ]
    console.print(plain_table("\noption", "\nvalue", "\nmeaning", rows=options))
    for change in made["changes"]:
        console.print(f"\nchange {change['name']}: {change['what']}")
    console.print(f"\ndigest {figures.digest}", soft_wrap=True)


def _counts(figures: WorkloadStatistics) -> list[tuple[str, str]]:
    def number(value: float | None, pattern: str) -> str:
        return "-" if value is None else pattern.format(value)

    rows = [
        ("requests", f"{figures.requests:,}"),
        ("seconds", f"{figures.seconds:g}"),
        ("rate", f"{figures.rate:.3g} requests/s"),
        ("variation of the gaps", f"{number(figures.gap_cv, '{:.2f}')} (standard deviation / mean; 1 is Poisson)"),
        ("mean answer", f"{figures.output_mean:,.1f} tokens"),
        ("variation of the answers", number(figures.output_cv, "{:.2f}")),
        ("state a limit", f"{figures.stated_limits:,}"),
        ("have a deadline", f"{figures.deadlines:,}"),
        ("tenants", _named(figures.tenants)),
    ]
    if figures.shared_prompt_share:
        rows.append(("prompt tokens shared", f"{figures.shared_prompt_share:.1%}"))
    if figures.languages:
        rows += [("languages", _named(figures.languages)), ("tasks in several languages", f"{figures.pairs:,}")]
    return rows


def _named(counts: dict[str, int]) -> str:
    shown = [f"{name} {many:,}" for name, many in list(counts.items())[:MOST_TENANTS]]
    more = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _points(spread: Spread) -> list[str]:
    return [f"{spread[level]:,.0f}" for level in ("p50", "p90", "max")] if spread else []
