"""A bench's figures as tables, and below them the formula of every figure."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from ekiden.cli.terminal import plain_table
from ekiden.measure.figures import FORMULAS
from ekiden.measure.percentiles import LEVELS, MIN_VALUES_FOR_P99

NOT_ESTIMABLE = "n. e."
_COUNTS = ("requests", "failures", "steps", "rows", "running", "waiting", "tenants", "prompt_tokens", "output_tokens")
_MORE_COUNTS = ("good", "preemptions")
_SHARES = ("slo_attainment", "slot_utilisation", "budget_share", "kv_share", "host_share", "sampling_share")
_RATES = ("prompt", "output", "total", "prefill", "decode", "pure_decode")
_PATTERNS = {
    **dict.fromkeys(_COUNTS, "{:,}"),
    "duration_seconds": "{:.2f} s",
    **{f"{name}_tokens_per_second": "{:,.0f} tok/s" for name in _RATES},
    **dict.fromkeys(_MORE_COUNTS, "{:,}"),
    "goodput_per_second": "{:.3f} /s",
    **dict.fromkeys(_SHARES, "{:.2%}"),
    "cpu_seconds_per_step": "{:.4f} s",
    "cpu_seconds": "{:.2f} s",
    "joules": "{:,.0f} J",
}


def table_of(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table without lines whose first column is text and whose others are numbers."""
    return plain_table(*columns, rows=rows, right=range(1, len(columns)), header=any(columns))


def print_figures(console: Console, title: str, figures: Mapping[str, object]) -> None:
    """Counts and rates, then the distributions in milliseconds, then the formulas of what was shown."""
    console.print(f"[bold]{title}[/bold]\n")
    shown = {name: value for name in _PATTERNS if isinstance(value := figures.get(name), int | float)}
    console.print(table_of(("", ""), ((name, _PATTERNS[name].format(value)) for name, value in shown.items())))
    spreads = {name: value for name, value in figures.items() if isinstance(value, Mapping) and "p50" in value}
    if spreads:
        console.print()
        columns = ("milliseconds", *LEVELS, "max", "n")
        console.print(table_of(columns, (_distribution(name, points) for name, points in spreads.items())))
        if any(points["n"] < MIN_VALUES_FOR_P99 for points in spreads.values()):
            console.print(f"{NOT_ESTIMABLE}: a p99 needs {MIN_VALUES_FOR_P99} values", style="dim")
    kinds = figures.get("failures_by_kind")
    if isinstance(kinds, Mapping) and kinds:
        console.print("\nfailures: " + ", ".join(f"{kind} x{count}" for kind, count in kinds.items()))
    console.print()
    for name in [*shown, *spreads, *(["percentiles"] if spreads else [])]:
        if name in FORMULAS:
            console.print(f"{name} = {FORMULAS[name]}", style="dim", soft_wrap=True)
    made = figures.get("lineage")
    if isinstance(made, Mapping):
        told = ", ".join(f"{name} {value}" for name, value in made.items() if isinstance(value, str | int | float))
        console.print(f"\nMade with {told}.", soft_wrap=True)


def _distribution(name: str, points: Mapping[str, float]) -> list[str]:
    cells = {level: f"{1000 * points[level]:,.1f}" for level in (*LEVELS, "max")}
    if points["n"] < MIN_VALUES_FOR_P99:
        cells["p99"] = NOT_ESTIMABLE
    return [name.removesuffix("_seconds"), *cells.values(), f"{points['n']:,}"]
