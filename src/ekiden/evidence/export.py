"""A stored run as Parquet tables. Spans are in :mod:`ekiden.evidence.spans`.

What is exported is what is stored: digests and numbers, no prompts and no outputs.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from ekiden.evidence.extras import needed
from ekiden.evidence.reader import Event, LedgerReader, decisions_of, request_detail_of
from ekiden.evidence.words import event_words
from ekiden.ledger.records import LEFT_OUT_REASONS, WAIT_REASONS, EndRow, RequestRow, TurnRow

CHUNK: Final = 20_000
_TURNS: Final = (
    "turn int64, start double, took double, p10 double, p50 double, p90 double, prefill_time double, waiting int64, "
    "running int64, free_blocks int64, decode_rows int64, decode_context int64, prefill_tokens int64, swapped int64, "
    "tokens int64, wait string, head int64, admitted int64[], victims int64[], retired int64[], left_out string[], "
    "budget int64, new_sizes int64"
)
_EVENTS: Final = "request int64, turn int64, at_end bool, event string, value int64, words string"
_REQUESTS: Final = (
    "request int64, request_id string, tenant string, turn int64, arrival double, deadline double, "
    "prompt_tokens int64, max_tokens int64, priority int64, refusal string, external_id string, prompt_digest string, "
    "sampling string, expected_p10 int64, expected_p50 int64, expected_p90 int64, reason string, end double, "
    "e2e double, admitted double, first_token double, output_tokens int64, cached_tokens int64, preemptions int64, "
    "blocks int64"
)
_CONTROLS: Final = (
    "turn int64, at int64, name string, value string, set_by string, who string, why string, old string, expires int64"
)


def export_parquet(reader: LedgerReader, folder: Path) -> dict[str, int]:
    """Write ``turns``, ``events``, ``requests`` and ``controls`` as Parquet files; returns their numbers of rows.

    Times are seconds since the run began, reasons are words. Raises :class:`ExportError` without pyarrow, OSError when
    the folder cannot be written.
    """
    pyarrow, parquet = needed("pyarrow", "export"), needed("pyarrow.parquet", "export")
    folder.mkdir(parents=True, exist_ok=True)
    base, ends = reader.header.clock_base, {end.request: end for end in reader.all_ends()}
    tables: dict[str, tuple[str, Iterator[dict[str, Any]]]] = {
        "turns": (_TURNS, map(_turn, reader.all_turns())),
        "events": (_EVENTS, map(_event, reader.all_events())),
        "requests": (_REQUESTS, (_request(row, ends.get(row.request), base) for row in reader.all_requests())),
        "controls": (_CONTROLS, (row._asdict() for row in reader.all_controls())),
    }
    counts = {}
    metadata = {"ekiden.run_id": reader.header.run_id, "ekiden.fingerprint": reader.header.fingerprint}
    for name, (columns, rows) in tables.items():
        schema = pyarrow.schema(_fields(pyarrow, columns)).with_metadata(metadata)
        counts[name] = 0
        with parquet.ParquetWriter(folder / f"{name}.parquet", schema, compression="zstd") as writer:
            while chunk := list(islice(rows, CHUNK)):
                writer.write_table(pyarrow.Table.from_pylist(chunk, schema=schema))
                counts[name] += len(chunk)
    return counts


def _fields(pyarrow: Any, columns: str) -> list[tuple[str, Any]]:
    """Arrow's fields for "name type, ..."."""
    fields = []
    for column in columns.split(", "):
        name, kind = column.split()
        single = pyarrow.type_for_alias(kind.removesuffix("[]"))
        fields.append((name, pyarrow.list_(single) if kind.endswith("[]") else single))
    return fields


def _turn(row: TurnRow) -> dict[str, Any]:
    """Columns of the same name come as they are."""
    decisions = decisions_of(row)
    seconds = {name: getattr(row, name) / 1e6 for name in ("start", "took", "p10", "p50", "p90", "prefill_time")}
    return {
        **row._asdict(),
        **seconds,
        "wait": None if row.wait is None else WAIT_REASONS[row.wait].value,
        "admitted": [entry[0] for entry in (*decisions.admitted_start, *decisions.admitted)],
        "victims": [victim for victim, _ in decisions.victims],
        "retired": [request for request, _ in decisions.retired],
        "left_out": [f"{number}:{LEFT_OUT_REASONS[code].value}" for number, code in decisions.left_out if code],
        "budget": decisions.budget,
    }


def _event(row: Event) -> dict[str, Any]:
    return {**row._asdict(), "at_end": bool(row.late), "event": row.kind.name, "words": event_words(row)}


def _request(row: RequestRow, end: EndRow | None, clock_base: int) -> dict[str, Any]:
    """Columns of the same name come as they are; those of the end stay empty while there is none."""
    detail = request_detail_of(row)
    ended = {} if end is None else {"end": end.at, **end._asdict()}
    times = {name: at and at / 1e6 for name, at in ended.items() if name in ("end", "e2e", "admitted", "first_token")}
    return {
        **ended,
        **times,
        **row._asdict(),
        "arrival": row.arrival / 1e6,
        "deadline": None if detail.deadline is None else detail.deadline - clock_base / 1e6,
        "external_id": detail.external_id,
        "prompt_digest": detail.prompt_digest.hex(),
        "sampling": msgspec.json.encode(detail.sampling).decode(),
        **dict(zip(("expected_p10", "expected_p50", "expected_p90"), detail.expected_output or (), strict=False)),
    }
