"""The evidence over HTTP: the owner of a request is told where its time went; nobody else learns that it exists."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ekiden.api.keys import new_key
from ekiden.config import Config, LedgerConfig, LimitsConfig, ServerConfig
from ekiden.evidence.live_view import LiveView
from ekiden.ledger.store import LedgerWriter
from tests.api.conftest import assert_error
from tests.api.real_core import RealCore, real_core
from tests.api.scripted import MODEL
from tests.unit.evidence.directed import Directed


class Keyed:
    def __init__(self, core: RealCore, keys: dict[str, str]) -> None:
        self.core = core
        self._keys = keys

    def _headers(self, who: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self._keys[who]}"}

    async def complete(self, who: str, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "prompt": "hello", "max_tokens": 5, "temperature": 0, "ignore_eos": True, **fields}
        answer = await self.core.http.post("/v1/completions", json=body, headers=self._headers(who))
        assert answer.status_code == 200, answer.text
        return answer

    async def get(self, who: str, path: str) -> httpx.Response:
        return await self.core.http.get(path, headers=self._headers(who))

    async def explain(self, who: str, request_id: str) -> httpx.Response:
        return await self.get(who, f"/v1/explain/{request_id}")


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    made = {name: new_key() for name in ("alice", "bob", "boss")}
    entries = []
    for name, (_, digest) in made.items():
        scopes = ["inference", "admin"] if name == "boss" else ["inference"]
        entries.append(f'[[keys]]\nname = "{name}"\nhash = "{digest}"\nscopes = {scopes}')
    path = tmp_path / "keys.toml"
    path.write_text("\n".join(entries))
    config = Config(
        server=ServerConfig(api_keys_file=str(path)), ledger=LedgerConfig(ledger_dir=str(tmp_path / "ledger"))
    )
    async with real_core(config, record=True) as core:
        yield Keyed(core, {name: key for name, (key, _) in made.items()})


async def test_the_owner_is_told(keyed: Keyed) -> None:
    answer = await keyed.complete("alice")
    request_id = answer.headers["x-ekiden-request-id"]
    told = (await keyed.explain("alice", request_id)).json()
    assert told["request_id"] == request_id
    assert told["status"] == "finished"
    assert told["tenant"] == "alice"
    assert told["output_tokens"] == 5
    assert sum(cause["seconds"] for cause in told["causes"]) == pytest.approx(told["e2e_seconds"], abs=1e-5)
    assert told["life"][-1]["event"] == "ENDED"


async def test_another_tenant_gets_what_the_unknown_gets(keyed: Keyed) -> None:
    request_id = (await keyed.complete("alice")).headers["x-ekiden-request-id"]
    refused = await keyed.explain("bob", request_id)
    assert_error(refused, 404, "request_id", "request_not_found")
    unknown = await keyed.explain("bob", "0" * 32)
    assert refused.text.replace(request_id, "x") == unknown.text.replace("0" * 32, "x")
    assert (await keyed.explain("boss", request_id)).status_code == 200
    without_key = await keyed.core.http.get(f"/v1/explain/{request_id}")
    assert_error(without_key, 401)


async def test_a_call_with_several_answers(keyed: Keyed) -> None:
    answer = await keyed.complete("alice", n=3)
    request_id = answer.headers["x-ekiden-request-id"]
    told = (await keyed.explain("alice", request_id)).json()
    assert told["request_id"] == request_id
    assert [one["request_id"] for one in told["answers"]] == [f"{request_id}-{index}" for index in range(3)]
    assert told["e2e_seconds"] == max(one["e2e_seconds"] for one in told["answers"])


async def test_a_refused_call(tmp_path: Path) -> None:
    config = Config(ledger=LedgerConfig(ledger_dir=str(tmp_path)), limits=LimitsConfig(max_num_queued_tokens=50))
    async with real_core(config, record=True) as core:
        answer = await core.complete("x" * 100, max_tokens=5)
        assert_error(answer, 503)
        told = (await core.http.get(f"/v1/explain/{answer.headers['x-ekiden-request-id']}")).json()
    assert (told["status"], told["reason"]) == ("refused", "queue_full_tokens")
    assert told["headline"].startswith("Refused (queue_full_tokens)")


async def test_a_server_that_records_nothing() -> None:
    async with real_core(Config(ledger=LedgerConfig(ledger=False))) as core:
        assert_error(await core.http.get("/v1/explain/abc"), 404, code="ledger_off")


async def test_ids_are_compared_and_never_looked_up(keyed: Keyed) -> None:
    for name in ("%2e%2e%2fetc", "' OR 1=1 --", "*"):
        response = await keyed.explain("alice", name)
        assert response.status_code == 404


async def test_the_lineage_is_told_and_names_and_folders_only_to_an_administrator(keyed: Keyed) -> None:
    card = keyed.core.engine.card
    assert card.lineage.apart, "there is something to hide"
    seen = (await keyed.get("alice", "/v1/lineage")).json()
    assert seen["digest"] == card.lineage.digest
    assert seen["settings"] == card.lineage.settings
    assert seen["apart"] == {}
    assert (await keyed.get("boss", "/v1/lineage")).json()["apart"] == card.lineage.apart
    assert_error(await keyed.core.http.get("/v1/lineage"), 401)


async def test_the_engine_at_a_glance_is_for_administrators(keyed: Keyed) -> None:
    empty = msgspec.convert((await keyed.get("boss", "/admin/live")).json(), LiveView)
    assert (empty.turn, empty.running, empty.recording) == (0, 0, True)
    await keyed.complete("alice", max_tokens=7)
    await keyed.complete("bob", prompt=["one", "two"])
    view = empty
    async with asyncio.timeout(60):
        while view.ended.get("length") != 3:  # the ledger is written a fifth of a second behind
            view = msgspec.convert((await keyed.get("boss", "/admin/live?window=60")).json(), LiveView)
    assert {one.tenant: (one.output_tokens, one.ended) for one in view.tenants} == {"alice": (7, 1), "bob": (10, 2)}
    assert view.window_seconds == 60.0
    assert view.model == MODEL
    assert view.lineage == keyed.core.engine.card.lineage.digest
    assert view.exact
    assert_error(await keyed.get("alice", "/admin/live"), 403)
    assert_error(await keyed.core.http.get("/admin/live"), 401)
    for wrong in ("0", "601", "nan", "x", ""):
        assert_error(await keyed.get("boss", f"/admin/live?window={wrong}"), 400, "window")


async def test_another_engines_run_in_the_same_folder_is_not_shown(keyed: Keyed, tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    other = Directed()
    writer = LedgerWriter(folder / "99990101-000000-ffff.sqlite", other.header)
    try:
        assert (await keyed.get("boss", "/admin/live")).json()["model"] == MODEL
        keyed.core.built.close_ledger()
        assert_error(await keyed.get("boss", "/admin/live"), 503, code="ledger_unavailable")
    finally:
        writer.close()


async def test_a_server_without_a_ledger_has_no_view_of_it(tmp_path: Path) -> None:
    key, digest = new_key()
    path = tmp_path / "keys.toml"
    path.write_text(f'[[keys]]\nname = "boss"\nhash = "{digest}"\nscopes = ["admin"]')
    config = Config(server=ServerConfig(api_keys_file=str(path)), ledger=LedgerConfig(ledger=False))
    async with real_core(config) as core:
        answer = await core.http.get("/admin/live", headers={"authorization": f"Bearer {key}"})
        assert_error(answer, 404, code="ledger_off")
