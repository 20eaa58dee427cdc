"""What the HTTP layer refuses has an id, a row in the ledger and a place in the metrics, like what intake refuses."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from ekiden.build.engines import build_engine
from ekiden.config import Config, LedgerConfig, LimitsConfig, ServerConfig
from ekiden.engine.async_engine import AsyncEngine
from ekiden.engine.inbox import MAX_NOTED_REFUSALS
from ekiden.engine.interface import Health
from ekiden.engine.loop import MAX_QUEUED_NOTES
from ekiden.evidence.decision_replay import replay
from ekiden.evidence.reader import LedgerReader, request_detail_of
from ekiden.evidence.runs import find_request
from ekiden.evidence.why import Question, why
from ekiden.state.request import Refusal, RefusalReason, RefusedCall, Request
from ekiden.state.sampling_params import SamplingParams
from tests.api.conftest import Live, Memory
from tests.api.real_core import CONTEXT, RealCore, real_core
from tests.api.scripted import MODEL, VOCAB_SIZE
from tests.api.test_live import raw
from tests.unit.engine.fake_parts import make_fake_parts

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
DOORS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    TEXT: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    COUNT: {"messages": [{"role": "user", "content": "hi"}]},
}
REFUSED: list[tuple[RefusalReason, dict[str, Any]]] = [
    (RefusalReason.INVALID, {"json": {"messages": 5, "prompt": 5, "input": 5}}),
    (RefusalReason.INVALID, {"json": {"model": 5}}),
    (RefusalReason.INVALID_JSON, {"content": b"{"}),
    (RefusalReason.INVALID_JSON, {"content": b"[]"}),
    (RefusalReason.UNSUPPORTED_MEDIA_TYPE, {"content": b"{}", "headers": {"content-type": "text/plain"}}),
    (RefusalReason.MODEL_NOT_FOUND, {"json": {"model": "nobody/nothing"}}),
    (RefusalReason.BODY_TOO_LARGE, {"content": b" " * 200_000}),
    (RefusalReason.INVALID, {"json": {}, "headers": {"x-tenant": "a b"}}),
]


def recording(tmp_path: Path, **limits: Any) -> Config:
    return Config(
        ledger=LedgerConfig(ledger_dir=str(tmp_path)),
        limits=LimitsConfig(max_body_mib=0.1, **limits),
        server=ServerConfig(tenant_header="x-tenant"),
    )


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, **DOORS[path], **fields}


async def explained(core: RealCore, response: httpx.Response) -> dict[str, Any]:
    """What the ledger says of a refused call: the id that its response carries is in it."""
    told = await core.http.get(f"/v1/explain/{response.headers['x-ekiden-request-id']}", headers=tenant_of(response))
    assert told.status_code == 200, told.text
    return dict(told.json())


def tenant_of(response: httpx.Response) -> dict[str, str]:
    tenant = response.request.headers.get("x-tenant", "")
    return {"x-tenant": tenant} if tenant.isalnum() else {}


@pytest.mark.parametrize("path", DOORS)
async def test_what_each_door_refuses_is_explained(tmp_path: Path, path: str) -> None:
    async with real_core(recording(tmp_path), record=True) as core:
        responses = []
        for _, options in REFUSED:
            fields: dict[str, Any] = dict(options)
            if "json" in fields:
                fields["json"] = body_for(path, **fields["json"])
            headers = {"content-type": "application/json", "x-request-id": "mine", "x-tenant": "acme"}
            responses.append(await core.http.post(path, **{**fields, "headers": headers | fields.get("headers", {})}))
        # All are sent before the first is asked about: the ledger is written a few times a second.
        for (reason, options), response in zip(REFUSED, responses, strict=True):
            assert 400 <= response.status_code < 500
            told = await explained(core, response)
            assert (told["status"], told["reason"]) == ("refused", reason.value)
            message = response.json()["error"]["message"].removesuffix(".")
            assert told["headline"] == f"Refused ({reason.value}): {message}"
            assert told["external_id"] == "mine"
            assert told["tenant"] == ("acme" if options.get("headers", {}).get("x-tenant") is None else "default")


async def test_prompts_that_cannot_be_answered(tmp_path: Path) -> None:
    prompts: list[tuple[Any, RefusalReason]] = [
        ("", RefusalReason.PROMPT_EMPTY),
        ([1] * CONTEXT, RefusalReason.CONTEXT_LENGTH_EXCEEDED),
        ("x" * 50_000, RefusalReason.CONTEXT_LENGTH_EXCEEDED),
        ([VOCAB_SIZE], RefusalReason.TOKEN_OUT_OF_VOCABULARY),
        ([10**30], RefusalReason.TOKEN_OUT_OF_VOCABULARY),
    ]
    async with real_core(recording(tmp_path), record=True) as core:
        answers = [(reason, await core.complete(prompt)) for prompt, reason in prompts]
        for reason, response in answers:
            assert response.json()["error"]["code"] == reason.value
        answers.append((RefusalReason.UNSUPPORTED, await core.complete(suffix="x")))
        for reason, response in answers:
            assert (await explained(core, response))["reason"] == reason.value


@pytest.mark.parametrize("state", ["draining", "closing"])
@pytest.mark.parametrize("path", DOORS)
async def test_newcomers_of_a_closed_server(tmp_path: Path, path: str, state: str) -> None:
    async with real_core(recording(tmp_path), record=True) as core:
        setattr(core.app.state.doors.generation.flight, state, True)
        response = await core.http.post(path, json=body_for(path))
        assert response.status_code == 503
        assert (await explained(core, response))["reason"] == RefusalReason.DRAINING.value


async def test_a_body_that_does_not_arrive(tmp_path: Path) -> None:
    """However long the server takes to see that, nothing more of it comes."""
    config = recording(tmp_path, body_timeout=0.05)
    async with real_core(config, record=True, live=True) as core:
        head = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"
        reader, writer = await asyncio.open_connection(*core.url.removeprefix("http://").split(":"))
        writer.write(head.encode() + b"{")
        answer = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        assert answer.startswith(b"HTTP/1.1 408 ")
        (name,) = [line for line in answer.split(b"\r\n") if line.startswith(b"x-ekiden-request-id: ")]
        told = await core.http.get(f"/v1/explain/{name.partition(b': ')[2].decode()}")
        assert told.json()["reason"] == RefusalReason.BODY_TIMEOUT.value


@pytest.mark.parametrize("head", [b"NONSENSE\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000])
async def test_what_is_no_http_has_an_id_too(live: Live, head: bytes) -> None:
    answer = await raw(live, head)
    (name,) = [line for line in answer.split(b"\r\n") if line.startswith(b"x-ekiden-request-id: ")]
    (noted,) = live.engine.noted
    assert noted.request.request_id == name.partition(b": ")[2].decode()
    assert noted.refusal.reason is RefusalReason.INVALID_HTTP


async def test_only_what_the_engine_has_not_seen_is_noted(memory: Memory) -> None:
    memory.engine.refuse = lambda request: Refusal(reason=RefusalReason.QUEUE_FULL_REQUESTS, message="full")
    assert (await memory.complete()).status_code == 503
    assert (await memory.complete(stream=True)).status_code == 503
    assert memory.engine.noted == []
    assert (await memory.complete(n=0)).status_code == 400
    (noted,) = memory.engine.noted
    assert noted.refusal.param == "n"
    assert noted.refusal.by_door


async def test_each_refusal_is_counted_and_recorded_once_and_replays(tmp_path: Path) -> None:
    async with real_core(recording(tmp_path), record=True) as core:
        refused = [await core.complete(temperature=-1, n=n) for n in range(3)]
        assert (await core.complete("fine", max_tokens=3)).status_code == 200
        refused.append(await core.complete(""))
        await core.clean()
        async with asyncio.timeout(60):  # the last one is noted at the next step
            while sum(core.engine.stats().refused_by_door_total.values()) < 4:
                await asyncio.sleep(0.005)
        stats = core.engine.stats()
        assert (stats.refused_total, stats.refused_by_door_total) == ({}, {"invalid": 3, "prompt_empty": 1})
        path = core.engine.ledger_path
        assert path is not None
    with LedgerReader(path) as reader:
        rows = [row for row in reader.all_requests() if row.refusal is not None]
        assert [row.request_id for row in rows] == [each.headers["x-ekiden-request-id"] for each in refused]
        assert all(request_detail_of(row).by_door for row in rows)
        told = why(reader, rows[0], Question.REFUSED)
        assert told.words.startswith("It was refused by the HTTP layer, invalid: ")
        assert replay(reader.header, reader.everything()).difference is None


def refused_call(number: int) -> RefusedCall:
    request = Request(
        request_id=f"r{number}", prompt_token_ids=(), sampling=SamplingParams(), arrival_time=0.0, tenant="flood"
    )
    return RefusedCall(request=request, refusal=Refusal(reason=RefusalReason.INVALID, message="no", by_door=True))


async def test_a_flood_is_counted_and_only_so_much_of_it_recorded(tmp_path: Path) -> None:
    count = 10 * MAX_NOTED_REFUSALS
    async with real_core(recording(tmp_path), record=True) as core:
        for number in range(count):
            core.engine.note_refusal(refused_call(number))
        async with asyncio.timeout(60):
            while core.engine.stats().refused_by_door_total.get("invalid", 0) < count:
                await asyncio.sleep(0.005)
        path = core.engine.ledger_path
        assert path is not None
    with LedgerReader(path) as reader:
        turns = [row.turn for row in reader.all_requests()]
        assert 0 < max(map(turns.count, turns)) <= MAX_NOTED_REFUSALS
        assert replay(reader.header, reader.everything()).difference is None


def test_notes_do_not_pile_up_while_the_engine_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = AsyncEngine(build_engine(make_fake_parts(Config()), Config()))
    assert not engine.note_refusal(refused_call(0)), "nothing comes of it while no engine runs"
    monkeypatch.setattr(AsyncEngine, "health", Health.OK)  # as of one whose step takes long: its loop does not run
    taken = [engine.note_refusal(refused_call(number)) for number in range(MAX_QUEUED_NOTES + 50)]
    assert taken.count(False) == 50
    assert engine._loop.inbox.qsize() == MAX_QUEUED_NOTES


async def test_a_dead_engine_refuses_nothing_less(tmp_path: Path) -> None:
    """The answer does not wait for the note."""
    async with real_core(recording(tmp_path), record=True) as core:
        await core.engine.stop()
        assert (await core.complete(temperature=-1)).status_code == 400
        assert (await core.complete()).status_code == 503


async def test_a_streamed_call_is_refused_and_explained_alike(tmp_path: Path) -> None:
    async with real_core(recording(tmp_path), record=True) as core:
        response = await core.http.post(CHAT, json=body_for(CHAT, stream=True, prompt_logprobs=1))
        assert json.loads(response.text)["error"]["param"] == "prompt_logprobs"
        request_id = response.headers["x-ekiden-request-id"]
        await explained(core, response)
    reader, rows = find_request(tmp_path, request_id)
    reader.close()
    assert [row.refusal for row in rows] == ["invalid"]
