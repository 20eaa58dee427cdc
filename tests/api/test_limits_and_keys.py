"""Body limits and the API key."""

import asyncio
import json

import httpx
import pytest
from starlette.requests import ClientDisconnect

from ekiden.api.auth import check_bind
from ekiden.api.body_limit import read_json_body
from ekiden.api.errors import ApiError
from ekiden.config import Config, ConfigError, LimitsConfig, ServerConfig
from tests.api.conftest import Memory, assert_error, memory_client
from tests.api.scripted import MODEL, ScriptedEngine, make_app, make_tokenizer

KEY = "käy-ключ"


async def test_declared_size(memory: Memory):
    message = assert_error(await memory.complete("x" * 9 * 2**20), 413, code="body_too_large")
    assert "max_body_mib" in message
    assert memory.engine.requests == []


async def test_chunked_body_is_counted_as_it_comes(memory: Memory):
    sent = 0

    async def endless():
        nonlocal sent
        while True:
            sent += 2**20
            yield b"x" * 2**20

    # The transport hands over one chunk for each receive(), so this ends only because the server stops reading.
    headers = {"content-type": "application/json"}
    response = await memory.http.post("/v1/completions", content=endless(), headers=headers)
    assert_error(response, 413, code="body_too_large")
    assert sent <= 10 * 2**20


async def test_body_at_the_limit():
    engine = ScriptedEngine(make_tokenizer())
    body = json.dumps({"model": MODEL, "prompt": "x"}).encode()
    limit = LimitsConfig(max_body_mib=len(body) / 2**20)
    async with memory_client(make_app(engine, Config(limits=limit))) as http:
        headers = {"content-type": "application/json"}
        assert (await http.post("/v1/completions", content=body, headers=headers)).status_code == 200
        assert_error(await http.post("/v1/completions", content=body + b" ", headers=headers), 413)


def scope(**headers: str):
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "headers": [(b"content-type", b"application/json"), *pairs]}


async def test_slow_body():
    async def receive():
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(ApiError) as error:
        await read_json_body(scope(), receive, max_bytes=10, seconds=0.01)
    assert error.value.status == 408


async def test_client_that_leaves_in_its_body():
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        return messages.pop(0)

    with pytest.raises(ClientDisconnect):
        await read_json_body(scope(), receive, max_bytes=10)


@pytest.mark.parametrize(("length", "status"), [("9" * 5000, 413), ("11", 413), ("-1", None), ("x", None), ("٣", None)])
async def test_odd_content_length(length, status):
    async def receive():
        return {"type": "http.request", "body": b"{}", "more_body": False}

    if status is None:
        assert await read_json_body(scope(content_length=length), receive, max_bytes=10) == b"{}"
    else:
        with pytest.raises(ApiError) as error:
            await read_json_body(scope(content_length=length), receive, max_bytes=10)
        assert error.value.status == status


@pytest.fixture
async def locked():
    engine = ScriptedEngine(make_tokenizer())
    async with memory_client(make_app(engine, Config(server=ServerConfig(api_key=KEY)))) as http:
        yield http


async def get(http: httpx.AsyncClient, *values: bytes, path: str = "/v1/models") -> httpx.Response:
    return await http.get(path, headers=[(b"authorization", value) for value in values])


async def test_right_key(locked):
    assert (await get(locked, b"Bearer " + KEY.encode())).status_code == 200


@pytest.mark.parametrize(
    "values",
    [
        (),
        (b"Bearer",),
        (b"Bearer ",),
        (b"bearer " + KEY.encode(),),
        (b"Basic " + KEY.encode(),),
        (KEY.encode(),),
        (b"Bearer  " + KEY.encode(),),
        (b"Bearer " + KEY.encode() + b" ",),
        (b"Bearer " + KEY.encode()[:-1],),
        (b"Bearer " + KEY.encode("utf-16"),),
        (b"Bearer \xff\xfe",),
        (b"Bearer " + b"x" * 2**20,),
        (b"Bearer " + KEY.encode(), b"Bearer " + KEY.encode()),
    ],
    ids=lambda values: repr(values)[:30],
)
async def test_wrong_keys(locked, values):
    for path in ("/v1/models", "/metrics", "/docs", "/openapi.json", "/nowhere"):
        response = await get(locked, *values, path=path)
        message = assert_error(response, 401, code="invalid_api_key")
        assert KEY not in message
        assert response.headers["www-authenticate"] == "Bearer"
        assert "x-ekiden-request-id" in response.headers


async def test_probes_stay_open(locked):
    assert (await locked.get("/health")).status_code == 200
    assert (await locked.get("/ready")).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_needs_no_key(host):
    check_bind(ServerConfig(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "example.org", "localhost.example.org"])
@pytest.mark.parametrize("key", [None, ""])
def test_other_addresses_need_a_key(host, key):
    with pytest.raises(ConfigError, match="--api-key"):
        check_bind(ServerConfig(host=host, api_key=key))
    check_bind(ServerConfig(host=host, api_key="secret"))
    check_bind(ServerConfig(host=host, api_keys_file="keys.toml"))
