"""``ekiden bench quality``: what every weight format costs in quality and needs in space, beside float32."""

from collections.abc import Mapping
from statistics import fmean

import click

from ekiden.build.progress import progress
from ekiden.cli.figures_table import table_of
from ekiden.cli.loading import describe_model
from ekiden.cli.options import Resolved, settings_options
from ekiden.cli.terminal import out, print_json
from ekiden.config import Config, ConfigError
from ekiden.errors import UserError
from ekiden.evaluation.benches import quality as bench
from ekiden.evaluation.benches.quality import Failed, Measured
from ekiden.measure.figures import Figures

COLUMNS = ("weights", "disk", "resident", "ppl first", "ppl", "to fp32", "same", "leaves after")


@click.command()
@settings_options("model", "cache", "scheduler", "engine", model_argument=False, skip=("weights",))
@click.option("--weights", "wanted", help="formats, separated by commas  [default: all]")
@click.option("--lang", type=click.Choice(("en", "ja")), default="en", help="of texts and prompts  [default: en]")
@click.option("--passages", type=click.IntRange(min=1), help="so many texts  [default: all]")
@click.option(
    "--prompts", type=click.IntRange(min=1), default=bench.PROMPTS, help=f"so many prompts  [default: {bench.PROMPTS}]"
)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def quality(
    resolved: Resolved, wanted: str | None, lang: str, passages: int | None, prompts: int, as_json: bool
) -> None:
    """Perplexity and greedy agreement of every weight format against float32, and its size. Takes minutes."""
    config, chosen = resolved.config, bench.formats(wanted)
    description = describe_model(config)
    context = config.model.max_model_len or description.max_position_embeddings
    material = bench.material_for(
        description, language=lang, num_passages=passages, num_prompts=prompts, context=context
    )
    with progress("bench quality", 1 + len(chosen), "formats") as advance:
        reference = bench.measure_apart(bench.reference_config(config), material)
        if isinstance(reference, Failed):
            raise UserError(f"the reference in {bench.REFERENCE} could not be measured: {reference.reason}")
        advance()
        rows: dict[str, Figures] = {"reference": bench.quality_figures(reference, reference, material)}
        for weights in chosen:
            found = _measured(config, weights, material, reference)
            if isinstance(found, Failed):
                rows[weights] = {"failure": found.reason}
            else:
                rows[weights] = bench.quality_figures(found, reference, material)
            advance()
    figures: Figures = {
        "model": description.files.name,
        "kv_dtype": config.cache.kv_dtype,
        "language": lang,
        "passages": len(material.passages),
        "passage_tokens": sum(map(len, material.passages)),
        "prompts": len(material.prompts),
        "answer_tokens": bench.ANSWER_TOKENS,
        "formats": rows,
    }
    if as_json:
        print_json(figures)
    else:
        about = f"{description.files.name}, keys and values in {config.cache.kv_dtype}, {len(material.passages)} texts"
        out().print(f"[bold]bench quality: {about}[/bold]\n")
        print_quality(rows)


def _measured(config: Config, weights: str, material: bench.Material, reference: Measured) -> Measured | Failed:
    try:
        return bench.measure_apart(bench.with_weights(config, weights), material, reference)
    except ConfigError as error:
        return Failed(reason=str(error))


def print_quality(rows: Mapping[str, Figures]) -> None:
    """The table of some engines' figures, and below it what its columns mean."""
    shown = {name: row for name, row in rows.items() if "failure" not in row}
    out().print(table_of(COLUMNS, (_row(name, row) for name, row in shown.items())))
    for name, row in rows.items():
        if "failure" in row:
            out().print(f"\n{name}: not measured: {row['failure']}", soft_wrap=True)
    out().print("\ntokens of each answer before it leaves fp32's:", soft_wrap=True)
    for name, row in shown.items():
        out().print(f"  {name}: {' '.join(map(str, _left(row)))}", soft_wrap=True)
    for line in (
        f"ppl = exp of the mean loss of a token over all texts; first: over the first {bench.FIRST_PASSAGES}",
        "to fp32 = ppl / the reference's, which has fp32 weights and f32 keys and values",
        "same = of the reference's answer tokens, those that are the likeliest here too after the same text",
        "leaves after = tokens of a greedy answer before the first that is not the reference's, mean, of "
        f"{bench.ANSWER_TOKENS}",
        "disk = the converted weights; resident = memory gained from before the load to the answers' end",
    ):
        out().print(line, style="dim", soft_wrap=True)


def _row(name: str, row: Figures) -> list[str]:
    same, compared = row["same_choices"], row["compared_choices"]
    share = f"{same / compared:.1%}" if isinstance(same, int) and isinstance(compared, int) else ""
    return [
        name,
        _megabytes(row["stored_bytes"]),
        _megabytes(row["resident_bytes"]),
        _number(row["perplexity_first"], 2),
        _number(row["perplexity"], 2),
        _number(row["perplexity_ratio"], 4),
        share,
        f"{fmean(_left(row)):.1f}",
    ]


def _left(row: Figures) -> list[int]:
    left = row["left_after"]
    assert isinstance(left, list)
    return left


def _number(value: object, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, float) else ""


def _megabytes(size: object) -> str:
    return f"{size / 1e6:,.0f} MB" if isinstance(size, int) else "unknown"
