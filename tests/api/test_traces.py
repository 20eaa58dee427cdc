"""From a client's trace context, over HTTP and the ledger, to the span that a collector gets."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ekiden.config import CacheConfig, Config, LedgerConfig, SchedulerConfig
from ekiden.engine.process import EngineClient
from ekiden.evidence.follow import Follower
from ekiden.evidence.spans import otlp_exporter
from tests.api.conftest import Memory
from tests.api.real_core import BLOCK, real_core
from tests.unit.engine.fake_parts import make_fake_engine, make_request
from tests.unit.evidence.collector import Collector, attributes_of, collecting

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    with collecting() as collector:
        yield collector


def config(tmp_path: Path) -> Config:
    return Config(
        scheduler=SchedulerConfig(max_num_seqs=6, max_num_batched_tokens=6 + 3 * BLOCK),
        cache=CacheConfig(block_size=BLOCK),
        ledger=LedgerConfig(ledger_dir=str(tmp_path)),
    )


async def test_a_call_with_a_trace_becomes_spans_of_it(tmp_path: Path, collector: Collector):
    async with real_core(config(tmp_path), record=True) as core:
        follower = Follower(lambda: core.engine.ledger_path, otlp_exporter(collector.url), poll_seconds=0.02)
        follower.start()
        core.http.headers["traceparent"] = f"00-{TRACE}-{PARENT}-01"
        core.http.headers["x-request-id"] = "client-7"
        response = await core.complete("hello", n=2, max_tokens=3, ignore_eos=True)
        assert response.status_code == 200
        await core.engine.stop()
        follower.stop(seconds=60)
    called = response.headers["x-ekiden-request-id"]
    spans = collector.named()
    assert spans.keys() == {f"{called}-0", f"{called}-1"}
    for span in spans.values():
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
        assert attributes_of(span)["ekiden.external_id"] == "client-7"
        assert attributes_of(span)["gen_ai.request.model"] == "toy/model"


@pytest.mark.parametrize(
    ("header", "taken"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"cc-{TRACE}-{PARENT}-00", True),
        (f"ff-{TRACE}-{PARENT}-01", False),
        (f"00-{TRACE.upper()}-{PARENT}-01", False),
        (f"00-{'0' * 32}-{PARENT}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE}-{PARENT}", False),
        ("x" * 5000, False),
    ],
)
async def test_only_a_valid_trace_context_is_taken(memory: Memory, header: str, taken: bool):
    memory.http.headers["traceparent"] = header
    assert (await memory.complete()).status_code == 200
    assert memory.engine.requests[0].traceparent == (header if taken else None)


async def test_an_engine_in_its_own_process_says_where_its_run_is_recorded(tmp_path: Path, collector: Collector):
    client = EngineClient(make_fake_engine, config(tmp_path))
    follower = Follower(lambda: client.ledger_path, otlp_exporter(collector.url), poll_seconds=0.02)
    before = client.ledger_path
    follower.start()
    try:
        await client.start()
        assert before is None
        assert client.ledger_path in list(tmp_path.iterdir())
        async for update in client.generate(make_request("a", max_tokens=2)):
            if update.terminal:
                break
    finally:
        await client.stop()
        follower.stop(seconds=60)
    assert collector.named().keys() == {"a"}
