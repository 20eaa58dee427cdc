"""Spans that are sent while a run goes on, to a collector on this machine."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ekiden.cli.main import main
from ekiden.config import ConfigError, LedgerConfig
from ekiden.evidence.follow import Follower
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.spans import BATCH, SpanMaker, export_spans, otlp_exporter, traces_endpoint
from ekiden.ledger.store import LedgerWriter
from tests.unit.evidence.collector import Collector, attributes_of, collecting
from tests.unit.evidence.directed import Directed

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


class Run:
    """A run whose ledger is written turn by turn, as the engine's process does it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.world = Directed(num_blocks=11)
        self.path = folder / f"{name}.sqlite"
        self.writer = LedgerWriter(self.path, msgspec.structs.replace(self.world.header, run_id=name))
        self._written = 0

    def write(self) -> None:
        for rows in self.world.kept.turns[self._written :]:
            self.writer.put(rows)
        self._written = len(self.world.kept.turns)

    def serve(self, *names: str, **fields: Any) -> None:
        """Requests from beginning to end."""
        for name in names:
            self.world.submit(name, **fields)
        self.world.run()
        self.write()


@pytest.fixture
def first(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path, "first")
    yield run
    run.writer.close()


def test_spans_come_while_the_run_goes_on(first: Run, collector: Collector) -> None:
    follower = Follower(lambda: first.path, otlp_exporter(collector.url), poll_seconds=0.02)
    follower.start()
    first.serve("a", "b")
    collector.wait_for(spans=2)
    first.world.submit("old", prompt=48, output=70)
    first.serve("young", prompt=60, output=40)
    first.serve("impossible", prompt=400)
    collector.wait_for(spans=5)
    first.world.submit("late", output=3)
    first.serve("last")
    first.writer.close()
    follower.stop(seconds=60)
    assert len(collector.spans) == follower.sent == 7
    assert collector.paths == {"/v1/traces"}
    assert collector.resources[0]["service.name"] == "ekiden"
    spans = collector.named()
    assert spans.keys() == {"a", "b", "old", "young", "impossible", "late", "last"}
    assert len({span.trace_id for span in collector.spans}) == 7
    events = [event.name for event in spans["young"].events]
    assert [events[0], events[-1]] == ["arrived", "ended"]
    assert {"admitted", "prefill", "first_token", "preempted", "resumed"} <= set(events)
    told = attributes_of(spans["young"])
    assert told["gen_ai.usage.output_tokens"] == 40
    assert told["gen_ai.response.finish_reasons"] == ["length"]
    assert attributes_of(spans["impossible"])["error.type"] == "exceeds_kv_cache"


def test_a_request_with_a_trace_is_a_child_of_it(first: Run, collector: Collector) -> None:
    first.serve("child", traceparent=f"00-{TRACE}-{PARENT}-01")
    first.serve("alone")
    first.serve("unsampled", traceparent=f"00-{TRACE}-{PARENT}-00")
    first.writer.close()
    with LedgerReader(first.path) as reader:
        assert export_spans(reader, otlp_exporter(collector.url)) == 2
    spans = collector.named()
    assert spans.keys() == {"child", "alone"}
    assert (spans["child"].trace_id.hex(), spans["child"].parent_span_id.hex()) == (TRACE, PARENT)
    assert spans["alone"].trace_id.hex() != TRACE
    assert spans["alone"].parent_span_id == b""


def test_the_same_request_is_always_the_same_span(first: Run) -> None:
    first.serve("a", "b")
    first.writer.close()
    with LedgerReader(first.path) as reader:
        once, again = (
            [span.get_span_context() for span in SpanMaker(reader).spans(reader.all_ends())] for _ in range(2)
        )
    assert [(c.trace_id, c.span_id) for c in once] == [(c.trace_id, c.span_id) for c in again]
    assert len({c.span_id for c in once}) == 2


def test_an_engine_that_is_restarted_is_followed(first: Run, tmp_path: Path, collector: Collector) -> None:
    current = [first.path]
    follower = Follower(lambda: current[0], otlp_exporter(collector.url), poll_seconds=0.02)
    first.serve("a")
    follower.start()
    collector.wait_for(spans=1)
    first.serve("the last of the first")
    first.writer.close()
    second = Run(tmp_path, "second")
    current[0] = second.path
    second.serve("b")
    collector.wait_for(spans=3)
    second.writer.close()
    follower.stop(seconds=60)
    assert collector.named().keys() == {"a", "the last of the first", "b"}
    assert [resource["ekiden.run_id"] for resource in collector.resources] == ["first", "first", "second"]


def test_a_collector_that_was_away_gets_all_of_it(
    first: Run, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """And what failed is told once, with the reason, not at every try."""
    collector.status = 400
    follower = Follower(lambda: first.path, otlp_exporter(collector.url), poll_seconds=0.005)
    first.serve("a", "b")
    with caplog.at_level(logging.WARNING):
        follower.start()
        collector.wait_for(posts=3)
        first.serve("c")
        collector.status = 200
        collector.wait_for(spans=3)
        first.writer.close()
        follower.stop(seconds=60)
    assert sorted(collector.named()) == ["a", "b", "c"]
    assert (follower.sent, follower.left_out) == (3, 0)
    (told,) = caplog.messages
    assert "spans cannot be sent and are tried again" in told
    assert "400" in told


def test_a_batch_that_is_never_taken_does_not_stop_the_next(first: Run, collector: Collector) -> None:
    collector.refuses = 3
    follower = Follower(lambda: first.path, otlp_exporter(collector.url), poll_seconds=0.005, max_tries=3)
    first.serve(*(f"r{number}" for number in range(BATCH + 2)), output=1)
    first.writer.close()
    follower.start()
    collector.wait_for(spans=2)
    follower.stop(seconds=60)
    assert follower.left_out == BATCH
    assert len(collector.spans) == 2


def test_the_end_does_not_wait_for_a_collector_that_is_gone(
    first: Run, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.status = 400
    follower = Follower(lambda: first.path, otlp_exporter(collector.url), poll_seconds=60)
    first.serve("a")
    first.writer.close()
    with caplog.at_level(logging.WARNING):
        follower.start()
        follower.stop(seconds=60)
    assert collector.posts == 1
    assert "`ekiden export first --otel`" in caplog.messages[-1]


def test_stopping_what_never_started(first: Run, collector: Collector) -> None:
    Follower(lambda: first.path, otlp_exporter(collector.url)).stop()
    assert collector.posts == 0


def test_endpoints() -> None:
    assert traces_endpoint("http://host:4318") == "http://host:4318/v1/traces"
    assert traces_endpoint("http://host:4318/") == "http://host:4318/v1/traces"
    assert traces_endpoint("https://host/otlp/v1/traces") == "https://host/otlp/v1/traces"
    for wrong in ("host:4318", "ftp://host", "http://"):
        with pytest.raises(ConfigError, match="otlp_endpoint is"):
            LedgerConfig(otlp_endpoint=wrong)


def test_what_serve_says_before_it_loads_anything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = ["serve", "no-such-model", "--port", "0", "--otlp-endpoint", "http://localhost:4318"]
    assert main([*serve, "--no-ledger"]) == 2
    assert "leave out --no-ledger, or --otlp-endpoint" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert main(serve) == 2
    assert "pip install 'ekiden[otel]'" in capsys.readouterr().err
