"""A stored run as Parquet tables. Spans are in :mod:`ekiden.evidence.spans`.

What is exported is what is stored: digests and numbers, no prompts and no outputs.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from ekiden.evidence.extras import needed
from ekiden.evidence.reader import Event, LedgerReader, decisions_of, request_detail_of
from ekiden.evidence.words import event_words
from ekiden.ledger.records import LEFT_OUT_REASONS, WAIT_REASONS, EndRow, RequestRow, TurnRow

CHUNK: Final = 20_000


def export_parquet(reader: LedgerReader, folder: Path) -> dict[str, int]:
    """Write ``turns``, ``events``, ``requests`` and ``controls`` as Parquet files; returns their numbers of rows.

    Times are seconds since the run began, reasons are words. Raises :class:`ExportError` without pyarrow, OSError when
    the folder cannot be written.
    """
    pyarrow, parquet = needed("pyarrow", "export"), needed("pyarrow.parquet", "export")
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "turns": map(_turn, reader.all_turns()),
        "events": map(_event, reader.all_events()),
        "requests": _requests(reader),
        "controls": (row._asdict() for row in reader.all_controls()),
    }
    counts = {}
    metadata = {"ekiden.run_id": reader.header.run_id, "ekiden.fingerprint": reader.header.fingerprint}
    for name, rows in tables.items():
        counts[name] = _write(pyarrow, parquet, folder / f"{name}.parquet", rows, metadata)
    return counts


def _write(pyarrow: Any, parquet: Any, path: Path, rows: Iterable[dict[str, Any]], metadata: dict[str, str]) -> int:
    writer, count = None, 0
    for chunk in _chunks(rows):
        if writer is None:
            first = pyarrow.Table.from_pylist(chunk)
            schema = pyarrow.schema([_typed(pyarrow, field) for field in first.schema]).with_metadata(metadata)
            writer = parquet.ParquetWriter(path, schema, compression="zstd")
        writer.write_table(pyarrow.Table.from_pylist(chunk, schema=schema))
        count += len(chunk)
    if writer is None:
        path.unlink(missing_ok=True)
    else:
        writer.close()
    return count


_REALS: Final = frozenset({"deadline", "admitted", "first_token", "end", "e2e"})
_WHOLES: Final = frozenset(
    {"head", "output_tokens", "cached_tokens", "preemptions", "blocks", "expected_p10", "expected_p50", "expected_p90"}
)
_WHOLE_LISTS: Final = frozenset({"admitted", "victims", "retired"})


def _typed(pyarrow: Any, field: Any) -> Any:
    """A column whose first chunk was empty gets the type that its values will have."""
    types = pyarrow.types
    if types.is_list(field.type) and types.is_null(field.type.value_type):
        inner = pyarrow.int64() if field.name in _WHOLE_LISTS else pyarrow.string()
        return field.with_type(pyarrow.list_(inner))
    if not types.is_null(field.type):
        return field
    if field.name in _REALS:
        return field.with_type(pyarrow.float64())
    return field.with_type(pyarrow.int64() if field.name in _WHOLES else pyarrow.string())


def _chunks(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _turn(row: TurnRow) -> dict[str, Any]:
    decisions = decisions_of(row)
    seconds = {name: getattr(row, name) / 1e6 for name in ("start", "took", "p10", "p50", "p90", "prefill_time")}
    counts = (
        "waiting",
        "running",
        "free_blocks",
        "decode_rows",
        "decode_context",
        "prefill_tokens",
        "swapped",
        "tokens",
    )
    return {
        "turn": row.turn,
        **seconds,
        **{name: getattr(row, name) for name in counts},
        "wait": None if row.wait is None else WAIT_REASONS[row.wait].value,
        "head": row.head,
        "admitted": [entry[0] for entry in (*decisions.admitted_start, *decisions.admitted)],
        "victims": [victim for victim, _ in decisions.victims],
        "retired": [request for request, _ in decisions.retired],
        "left_out": [f"{number}:{LEFT_OUT_REASONS[code].value}" for number, code in decisions.left_out if code],
        "budget": decisions.budget,
    }


def _event(row: Event) -> dict[str, Any]:
    return {
        "request": row.request,
        "turn": row.turn,
        "at_end": bool(row.late),
        "event": row.kind.name,
        "value": row.value,
        "words": event_words(row),
    }


def _requests(reader: LedgerReader) -> Iterator[dict[str, Any]]:
    ends = {end.request: end for end in reader.all_ends()}
    for row in reader.all_requests():
        yield _request(row, ends.get(row.request), reader.header.clock_base)


def _request(row: RequestRow, end: EndRow | None, clock_base: int) -> dict[str, Any]:
    detail = request_detail_of(row)
    p10, p50, p90 = detail.expected_output or (None, None, None)
    return {
        "request": row.request,
        "request_id": row.request_id,
        "tenant": row.tenant,
        "turn": row.turn,
        "arrival": row.arrival / 1e6,
        "deadline": None if detail.deadline is None else detail.deadline - clock_base / 1e6,
        "prompt_tokens": row.prompt_tokens,
        "max_tokens": row.max_tokens,
        "priority": row.priority,
        "refusal": row.refusal,
        "external_id": detail.external_id,
        "prompt_digest": detail.prompt_digest.hex(),
        "sampling": msgspec.json.encode(detail.sampling).decode(),
        "expected_p10": p10,
        "expected_p50": p50,
        "expected_p90": p90,
        "reason": None if end is None else end.reason,
        "end": None if end is None else end.at / 1e6,
        "e2e": None if end is None else end.e2e / 1e6,
        "admitted": None if end is None or end.admitted is None else end.admitted / 1e6,
        "first_token": None if end is None or end.first_token is None else end.first_token / 1e6,
        "output_tokens": None if end is None else end.output_tokens,
        "cached_tokens": None if end is None else end.cached_tokens,
        "preemptions": None if end is None else end.preemptions,
        "blocks": None if end is None else end.blocks,
    }
