"""An engine that is restarted from outside: its requests go on, and the ledger says why it ended."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ekiden.config import LedgerConfig
from ekiden.engine.interface import Health
from ekiden.engine.process import EngineClient
from ekiden.evidence.reader import LedgerReader, end_detail_of
from ekiden.ledger.retention import runs_in
from ekiden.state.request import Request
from tests.unit.engine.fake_parts import make_config, make_fake_engine, make_request
from tests.unit.engine.holding import slow_steps
from tests.unit.engine.test_engines import StoppedOnly, expected, until


async def answer_of(client: EngineClient, request: Request, act: Callable[[], object]) -> list[int]:
    """The tokens of a request on an engine that is started for it; ``act`` once the ledger has the request."""
    tokens, acted = list[int](), False
    with slow_steps() as be_quick:
        await client.start()
        async for update in client.generate(request):
            tokens += update.token_ids
            if not acted and _recorded(client.ledger_path):
                act()
                be_quick()
                acted = True
    return tokens


async def test_a_restart_is_recorded_with_its_reason_and_changes_no_token(tmp_path: Path) -> None:
    config = replace(make_config(), ledger=LedgerConfig(ledger_dir=str(tmp_path)))
    client = EngineClient(make_fake_engine, config)
    client.restart("nobody runs yet")
    try:
        request = make_request("r", max_tokens=3_000)
        tokens = await answer_of(client, request, lambda: client.restart("stall: step_stall is 9 s"))
        assert tokens == expected(request, 3_000)
        assert client.restarts == 1
        await until(lambda: client.health is Health.OK)
    finally:
        await client.stop()
    client.restart("nobody runs any more")
    second, first = runs_in(tmp_path)
    with LedgerReader(first) as reader:
        (end,) = reader.all_ends()
        assert (end.reason, end_detail_of(end).message) == (
            "engine_ended",
            "it was restarted: stall: step_stall is 9 s",
        )
    with LedgerReader(second) as reader:
        assert [end.reason for end in reader.all_ends()] == ["length"]


def _recorded(run: Path | None) -> bool:
    """Whether the ledger has the request already; it is a moment behind the engine."""
    assert run is not None
    with LedgerReader(run) as reader:
        return bool(reader.live_requests())


async def test_a_wedged_engine_is_replaced_and_its_ledger_says_that_it_was_wedged(tmp_path: Path) -> None:
    config = replace(make_config(), ledger=LedgerConfig(ledger_dir=str(tmp_path)))
    client = StoppedOnly(make_fake_engine, config, wedge_timeout=0.5)
    try:
        request = make_request("r", max_tokens=3_000)
        assert await answer_of(client, request, client.stop_engine) == expected(request, 3_000)
    finally:
        await client.stop()
    *_, first = runs_in(tmp_path)
    with LedgerReader(first) as reader:
        (end,) = reader.all_ends()
        assert end.reason == "engine_ended"
        assert "took no step for" in str(end_detail_of(end).message)
