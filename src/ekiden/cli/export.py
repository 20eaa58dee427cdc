"""``ekiden export``: a recorded run for other tools."""

import os
from pathlib import Path

import click

from ekiden.cli.options import Resolved
from ekiden.cli.runs import folder_options, open_run
from ekiden.cli.terminal import say
from ekiden.errors import UserError
from ekiden.evidence.export import export_parquet
from ekiden.evidence.spans import export_spans, otlp_exporter, traces_endpoint

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@folder_options
@click.option("--parquet", "parquet", metavar="DIR", help="write turns, events, requests and controls into this folder")
@click.option("--otel", is_flag=True, help="send one span for each request to --endpoint")
@click.option(
    "--endpoint",
    metavar="URL",
    help="OTLP/HTTP endpoint; default: otlp_endpoint of the settings, else OTEL_EXPORTER_OTLP_ENDPOINT",
)
def command(resolved: Resolved, run: str | None, parquet: str | None, otel: bool, endpoint: str | None) -> None:
    """Write a recorded run as Parquet tables or OpenTelemetry spans.

    RUN is its id, the beginning of it, a file, or `last` (the default).
    """
    if parquet is None and not otel:
        raise click.UsageError("give --parquet DIR, --otel, or both")
    with open_run(resolved, run) as reader:
        if parquet is not None:
            try:
                counts = export_parquet(reader, Path(parquet))
            except OSError as error:
                raise UserError(f"cannot write {parquet}: {error.strerror or error}") from error
            say(f"{parquet}: {', '.join(f'{count:,} {name}' for name, count in counts.items())}")
        if otel:
            target = traces_endpoint(endpoint or resolved.config.ledger.otlp_endpoint or _endpoint())
            count = export_spans(reader, otlp_exporter(target))
            say(f"{target}: {count:,} spans")


def _endpoint() -> str:
    """The endpoint that the variables of OpenTelemetry's own tools name."""
    traces, base = (os.environ.get(name) for name in ENDPOINT_VARIABLES)
    if traces:
        return traces
    if base:
        return base.rstrip("/") + "/v1/traces"
    raise UserError(f"no endpoint for spans is set; give --endpoint URL, or set {ENDPOINT_VARIABLES[1]}")
