"""A bench's figures as a table, every figure beside its formula."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from ekiden.evaluation.metrics import FORMULAS, LEVELS, MIN_VALUES_FOR_P99

_SCALARS = {
    "requests": "{:,}",
    "failures": "{:,}",
    "steps": "{:,}",
    "rows": "{:,}",
    "running": "{:,}",
    "waiting": "{:,}",
    "duration_seconds": "{:.2f} s",
    "prompt_tokens": "{:,}",
    "output_tokens": "{:,}",
    "prompt_tokens_per_second": "{:,.0f} tok/s",
    "output_tokens_per_second": "{:,.0f} tok/s",
    "total_tokens_per_second": "{:,.0f} tok/s",
    "decode_tokens_per_second": "{:,.0f} tok/s",
    "pure_decode_tokens_per_second": "{:,.0f} tok/s",
    "host_share": "{:.2%}",
    "sampling_share": "{:.2%}",
}


def print_figures(console: Console, title: str, figures: Mapping[str, object]) -> None:
    """Counts and rates first, then the distributions in milliseconds."""
    scalars = Table("figure", "value", "formula", title=title, title_justify="left")
    scalars.columns[1].justify = "right"
    for name, pattern in _SCALARS.items():
        value = figures.get(name)
        if isinstance(value, int | float):
            scalars.add_row(name, pattern.format(value), FORMULAS.get(name, ""))
    console.print(scalars)
    spread = {name: value for name, value in figures.items() if isinstance(value, Mapping) and "p50" in value}
    if spread:
        table = Table("milliseconds", *LEVELS, "max", "n", "formula")
        for column in table.columns[1:-1]:
            column.justify = "right"
        for name, points in spread.items():
            cells = [f"{1000 * float(points[level]):,.1f}" for level in LEVELS]
            if points["n"] < MIN_VALUES_FOR_P99:
                cells[list(LEVELS).index("p99")] = "not estimable"
            label = name.removesuffix("_seconds")
            table.add_row(label, *cells, f"{1000 * points['max']:,.1f}", f"{points['n']:,}", FORMULAS.get(name, ""))
        console.print(table)
    kinds = figures.get("failures_by_kind")
    if isinstance(kinds, Mapping) and kinds:
        console.print("failures: " + ", ".join(f"{kind} x{count}" for kind, count in kinds.items()))
    made = figures.get("lineage")
    if isinstance(made, Mapping):
        console.print("made with: " + ", ".join(f"{name} {value}" for name, value in made.items()), soft_wrap=True)
