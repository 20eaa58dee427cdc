"""Errors under ``/v1/messages`` have Anthropic's shape, whichever layer finds them; elsewhere they have OpenAI's."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest

from ekiden.api.errors import ApiError, messages_body
from ekiden.config import Config, LedgerConfig, LimitsConfig, ServerConfig
from tests.api.conftest import Memory, assert_error, memory_client
from tests.api.real_core import real_core
from tests.api.scripted import MODEL, ScriptedEngine, make_app, make_tokenizer
from tests.api.test_keys import Keys, keys

__all__ = ["keys"]

PATHS = ["/v1/messages", "/v1/messages/count_tokens"]
BODY: dict[str, Any] = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    taken = BODY if path == "/v1/messages" else {key: value for key, value in BODY.items() if key != "max_tokens"}
    return {**taken, **fields}


def assert_told(response: httpx.Response, status: int, kind: str) -> str:
    """The response is an error in Anthropic's shape; returns its message."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"type", "error"}
    assert body["type"] == "error"
    assert set(body["error"]) == {"type", "message"}
    assert body["error"]["type"] == kind
    return str(body["error"]["message"])


@pytest.fixture
async def locked(keys: Keys) -> AsyncIterator[httpx.AsyncClient]:
    engine = ScriptedEngine(make_tokenizer())
    config = Config(server=ServerConfig(api_keys_file=str(keys.path)), limits=LimitsConfig(max_body_mib=0.01))
    async with memory_client(make_app(engine, config)) as http:
        yield http


@pytest.mark.parametrize("path", PATHS)
async def test_keys(locked: httpx.AsyncClient, keys: Keys, path: str) -> None:
    for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}):
        response = await locked.post(path, json=body_for(path), headers=headers)
        assert "x-api-key" in assert_told(response, 401, "authentication_error")
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.headers["x-ekiden-request-id"]
    response = await locked.post(path, json=body_for(path), headers=keys.header("ops"))
    assert "'inference'" in assert_told(response, 403, "permission_error")
    response = await locked.post(path, json=body_for(path), headers={"x-api-key": keys.key["user"]})
    assert response.status_code == 200


@pytest.mark.parametrize("path", PATHS)
async def test_bodies(locked: httpx.AsyncClient, keys: Keys, path: str) -> None:
    headers = {"x-api-key": keys.key["user"], "content-type": "application/json"}

    async def post(content: Any, **more: str) -> httpx.Response:
        return await locked.post(path, content=content, headers={**headers, **more})

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 1000

    for large in (b" " * 20_000, pieces()):
        assert "max_body_mib" in assert_told(await post(large), 413, "request_too_large")
    whole = json.dumps(body_for(path)).encode()
    response = await post(whole, **{"content-type": "text/plain"})
    assert "application/json" in assert_told(response, 415, "invalid_request_error")
    for wrong in (b"", b"nonsense", b"[]", b"[" * 5000, b"\xff"):
        assert_told(await post(wrong), 400, "invalid_request_error")
    response = await post(json.dumps(body_for(path, system=1)))
    assert "system" in assert_told(response, 400, "invalid_request_error")
    response = await post(json.dumps(body_for(path, model="nobody")))
    assert "nobody" in assert_told(response, 404, "not_found_error")


async def test_paths_and_methods_that_are_not_there(memory: Memory) -> None:
    assert_told(await memory.http.get("/v1/messages"), 405, "invalid_request_error")
    assert_told(await memory.http.post("/v1/messages/batches", json={}), 404, "not_found_error")
    for path in ("/v1/messages2", "/v1/message", "/V1/messages"):
        assert_error(await memory.http.post(path, json=BODY), 404, code="not_found")


async def test_our_own_faults(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.engine, "script", lambda request: [][1])
    assert "Traceback" not in assert_told(await memory.http.post("/v1/messages", json=BODY), 500, "api_error")


async def test_other_paths_keep_their_shape(locked: httpx.AsyncClient, keys: Keys) -> None:
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/models", "/admin/policy", "/nowhere"):
        assert_error(await locked.post(path, json=BODY), 401, code="invalid_api_key")
    response = await locked.post("/v1/responses", json={}, headers=keys.header("ops"))
    assert_error(response, 403, code="insufficient_scope")


async def test_the_client_raises_what_it_documents(keys: Keys) -> None:
    expected: dict[str, type[anthropic.APIStatusError]] = {
        "wrong": anthropic.AuthenticationError,
        keys.key["ops"]: anthropic.PermissionDeniedError,
    }
    config = Config(server=ServerConfig(api_keys_file=str(keys.path)), ledger=LedgerConfig(ledger=False))
    async with real_core(config, live=True) as core:
        for key, error in expected.items():
            async with anthropic.AsyncAnthropic(base_url=core.url, api_key=key, max_retries=0) as client:
                with pytest.raises(error) as told:
                    await client.messages.create(**BODY)
            assert told.value.body["type"] == "error"  # type: ignore[index]
            assert "API key" in str(told.value)


@pytest.mark.parametrize(("status", "kind"), [(409, "invalid_request_error"), (500, "api_error"), (504, "api_error")])
def test_statuses_without_a_kind_of_their_own(status: int, kind: str) -> None:
    assert json.loads(messages_body(ApiError(status, "x")))["error"]["type"] == kind


async def test_the_description_says_so(memory: Memory) -> None:
    document = (await memory.http.get("/openapi.json")).json()
    for path, operations in document["paths"].items():
        wanted = "MessagesError" if path in PATHS else "Error"
        for operation in operations.values():
            for status in ("400", "401", "403", "404", "408", "413", "415", "429"):
                schema = operation["responses"][status]["content"]["application/json"]["schema"]
                assert schema == {"$ref": f"#/components/schemas/{wanted}"}, path
    properties = document["components"]["schemas"]["MessagesError"]["properties"]
    assert set(properties) == {"type", "error"}
    assert set(properties["error"]["properties"]) == {"type", "message", "estimate"}
    assert properties["error"]["required"] == ["type", "message"]
