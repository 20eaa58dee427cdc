"""Exports read back with the tools they are for: pyarrow, and an OpenTelemetry exporter in memory."""

import sys
from pathlib import Path

import pyarrow.parquet
import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ekiden.cli.main import main
from ekiden.evidence.export import export_parquet
from ekiden.evidence.extras import ExportError
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.spans import export_spans
from tests.unit.evidence.directed import Directed
from tests.unit.evidence.recorded import finished, stored


def run(folder: Path) -> LedgerReader:
    world = Directed(num_blocks=11)
    world.submit("old", prompt=48, output=70)
    world.submit("young", prompt=60, output=40, external_id="client-7", tenant="acme")
    world.submit("impossible", prompt=400)
    world.run()
    return world.stored(folder)


def test_parquet_holds_what_the_ledger_holds(tmp_path: Path) -> None:
    with run(tmp_path) as reader:
        counts = export_parquet(reader, tmp_path / "out")
        first, last = reader.bounds()
        generated = sum(row.tokens for row in reader.turns(first, last))
    tables = {name: pyarrow.parquet.read_table(tmp_path / "out" / f"{name}.parquet") for name in counts}
    assert {name: table.num_rows for name, table in tables.items()} == counts
    assert counts["turns"] == last
    assert sum(tables["turns"]["tokens"].to_pylist()) == generated == 70 + 40
    requests = {row["request_id"]: row for row in tables["requests"].to_pylist()}
    assert requests["young"]["external_id"] == "client-7"
    assert requests["young"]["tenant"] == "acme"
    assert requests["impossible"]["refusal"] == "exceeds_kv_cache"
    assert requests["old"]["output_tokens"] == 70
    assert "PREEMPTED" in tables["events"]["event"].to_pylist()
    assert tables["turns"].schema.metadata[b"ekiden.run_id"] == b"directed"
    assert any(tables["turns"]["victims"].to_pylist())


@pytest.mark.parametrize("seed", range(12))
def test_any_run_can_be_exported(tmp_path: Path, seed: int) -> None:
    """Columns that are empty at first must not break the file when values come."""
    with LedgerReader(stored(finished(seed), tmp_path)) as reader:
        counts = export_parquet(reader, tmp_path / "out")
        assert counts["requests"] == len(reader.all_requests())
        assert export_spans(reader, InMemorySpanExporter()) == len(reader.all_ends())


def test_a_run_without_a_turn_gives_empty_tables_with_all_columns(tmp_path: Path) -> None:
    with Directed().stored(tmp_path) as reader:
        assert set(export_parquet(reader, tmp_path / "out").values()) == {0}
    for name, column in {"turns": "victims", "events": "words", "requests": "first_token", "controls": "who"}.items():
        assert column in pyarrow.parquet.read_table(tmp_path / "out" / f"{name}.parquet").column_names


def test_a_span_for_each_request_with_its_stages(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    with run(tmp_path) as reader:
        assert export_spans(reader, exporter) == 3
        end = reader.end(2)
        started = reader.header.started
    assert end is not None
    spans = {str((span.attributes or {})["gen_ai.response.id"]): span for span in exporter.get_finished_spans()}
    young = spans["young"]
    attributes = young.attributes or {}
    assert attributes["gen_ai.usage.output_tokens"] == 40
    assert attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert attributes["ekiden.tenant"] == "acme"
    assert young.start_time is not None
    assert young.end_time is not None
    assert (young.end_time - young.start_time) / 1e3 == pytest.approx(end.e2e, abs=1)
    assert young.start_time / 1e9 == pytest.approx(started, abs=1.0)
    names = [event.name for event in young.events]
    assert names[0] == "arrived"
    assert names[-1] == "ended"
    assert "first_token" in names
    assert "preempted" in names
    assert all(young.start_time <= event.timestamp <= young.end_time for event in young.events)
    assert not spans["impossible"].status.is_ok


def test_an_exporter_that_fails_is_told(tmp_path: Path) -> None:
    class Failing(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.FAILURE

    with run(tmp_path) as reader, pytest.raises(ExportError, match="could not deliver all spans"):
        export_spans(reader, Failing())


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with run(tmp_path) as reader:
        with pytest.raises(ExportError, match=r"needs pyarrow: pip install 'ekiden\[export\]'"):
            export_parquet(reader, tmp_path / "out")
        with pytest.raises(ExportError, match=r"needs opentelemetry: pip install 'ekiden\[otel\]'"):
            export_spans(reader, InMemorySpanExporter())


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path).close()
    folder = ["--ledger-dir", str(tmp_path)]
    assert main(["export", *folder, "--parquet", str(tmp_path / "out")]) == 0
    assert "3 requests" in capsys.readouterr().out
    assert main(["export", *folder]) == 2
    assert "give --parquet DIR, --otel, or both" in capsys.readouterr().err
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert main(["export", *folder, "--otel"]) == 2
    assert "no endpoint for spans is set" in capsys.readouterr().err
    (tmp_path / "file").write_text("in the way")
    assert main(["export", *folder, "--parquet", str(tmp_path / "file" / "out")]) == 2
    assert "cannot write" in capsys.readouterr().err
