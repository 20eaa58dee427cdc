"""Hostile input: schemas, bodies and headers without end, names that look like paths, keys."""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ekiden.config import Config, LedgerConfig, LimitsConfig, ServerConfig
from tests.api.conftest import Memory, assert_error
from tests.api.real_core import RealCore, real_core
from tests.api.scripted import MODEL
from tests.known_faults.conftest import CHAT, PATHS, TEXT, alive, assert_shape, request_of


def nested(depth: int) -> Any:
    """``depth`` objects, one in the other, as text: no encoder recurses for us."""
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


SELF = {"$defs": {"q": {"$ref": "#/$defs/q"}}, "type": "object", "properties": {"v": {"$ref": "#/$defs/q"}}}
CYCLE = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
TREE = {
    "$defs": {"t": {"type": "object", "properties": {"l": {"$ref": "#/$defs/t"}, "v": {"type": "integer"}}}},
    "$ref": "#/$defs/t",
}
SCHEMAS: dict[str, Any] = {
    "self": SELF, "cycle": CYCLE, "deep": nested(150),
    "groups": {"type": "string", "pattern": "(" * 2000 + "a" + ")" * 2000},
    "enum": {"enum": [f"value {index}" for index in range(10_000)]},
}  # fmt: skip


def with_schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


def with_tool(schema: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}], "tool_choice": "required"}


@pytest.mark.parametrize("place", [with_schema, with_tool])
@pytest.mark.parametrize("name", SCHEMAS)
async def test_pb_40_schemas_without_end_are_refused(core: RealCore, name: str, place: Any) -> None:
    before = await alive(core)
    response = await core.http.post(CHAT, json=request_of(CHAT, max_tokens=8, **place(SCHEMAS[name])))
    assert response.status_code == 400, response.text[:300]
    assert len(assert_shape(response)) < 1000
    assert await alive(core) == before


@pytest.mark.parametrize("bounds", [{"maxItems": 10**9}, {"minItems": 10**9}, {"minItems": 10**9, "maxItems": 10**9}])
async def test_pb_40_a_list_of_a_billion_costs_nothing(core: RealCore, bounds: dict[str, int]) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, **bounds}
    response = await core.http.post(CHAT, json=request_of(CHAT, max_tokens=8, **with_schema(schema)))
    assert response.status_code in (200, 400)
    await alive(core)


@pytest.mark.parametrize("place", [with_schema, with_tool])
async def test_pb_40_a_legal_tree_works(core: RealCore, place: Any) -> None:
    response = await core.http.post(CHAT, json=request_of(CHAT, max_tokens=8, **place(TREE)))
    assert response.status_code == 200, response.text
    await alive(core)


def text_nested(opening: str, depth: int, inside: str, closing: str) -> str:
    return opening * depth + inside + closing * depth


BODIES = {
    "schema": text_nested('{"type":"object","properties":{"a":', 2000, "{}", "}}"),
    "metadata": text_nested('{"a":', 5000, "1", "}"),
}


@pytest.mark.parametrize("path", PATHS)
async def test_pb_40_bodies_without_end_are_refused(core: RealCore, path: str) -> None:
    plain = json.dumps(request_of(path, max_tokens=2))[:-1]
    deep = BODIES["schema"]
    bodies = [
        f'{plain},"metadata":{BODIES["metadata"]}}}', f'{plain},"guided_json":{deep}}}',
        f'{plain},"response_format":{{"type":"json_schema","json_schema":{{"name":"a","schema":{deep}}}}}}}',
        f'{plain},"tools":[{{"type":"function","function":{{"name":"f","parameters":{deep}}}}}]}}',
        "[" * 20_000, "{" * 20_000, '{"a":' * 20_000, "[" * 1_000_000,
    ]  # fmt: skip
    for body in bodies:
        response = await core.http.post(path, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400, response.text[:300]
        assert len(assert_shape(response)) < 1000
    await alive(core)


OTHER_DOORS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"max_tokens": 2, "messages": [{"role": "user", "content": "x"}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
    "/v1/embeddings": {"input": "x"},
    "/v1/score": {"text_1": "x", "text_2": "y"},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
}


@pytest.mark.parametrize("path", OTHER_DOORS)
async def test_pb_40_the_other_doors_refuse_them_too(core: RealCore, path: str) -> None:
    plain = json.dumps({"model": MODEL, **OTHER_DOORS[path]})[:-1]
    deep = BODIES["schema"]
    fields = [
        f'"metadata":{BODIES["metadata"]}', f'"text":{{"format":{{"type":"json_schema","name":"a","schema":{deep}}}}}',
        f'"output_config":{{"format":{{"type":"json_schema","schema":{deep}}}}}',
        f'"tools":[{{"name":"f","input_schema":{deep}}}]',
        f'"tools":[{{"type":"function","name":"f","parameters":{deep}}}]',
        f'"messages":[{{"role":"user","content":{BODIES["metadata"]}}}]', f'"input":{text_nested("[", 5000, "", "]")}',
    ]  # fmt: skip
    for body in [*(f"{plain},{field}}}" for field in fields), "[" * 20_000, '{"a":' * 20_000, "[" * 1_000_000]:
        response = await core.http.post(path, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400, response.text[:300]
        assert len(response.json()["error"]["message"]) < 1000
    await alive(core)


_watching: list[tuple[str, str]] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching is not None and event in ("open", "socket.connect", "socket.getaddrinfo", "os.listdir", "os.scandir"):
        _watching.append((event, repr(arguments)[:200]))


@contextmanager
def watched() -> Iterator[list[tuple[str, str]]]:
    """What this process opens, lists or connects to meanwhile."""
    global _watching
    if not getattr(_audit, "installed", False):
        sys.addaudithook(_audit)
        _audit.installed = True  # type: ignore[attr-defined]  # a hook cannot be taken back
    seen: list[tuple[str, str]] = []
    _watching = seen
    try:
        yield seen
    finally:
        _watching = None


NAMES = [
    "nope", "", "../../etc/passwd", "/etc/hostname", "someorg/some-model", "https://models.example/x", MODEL + " ",
    MODEL.upper(), MODEL + "\0", "x" * 100_000,
]  # fmt: skip


async def test_pb_41_a_model_is_a_name_and_no_path(memory: Memory) -> None:
    """No file and no address is looked at, and the answer does not tell whether there is one."""
    await memory.complete()  # whatever is loaded when it is first needed
    await memory.http.get("/v1/models/nope")
    with watched() as seen:
        messages = set()
        for name in NAMES:
            for call in (memory.complete, memory.chat):
                message = assert_error(await call(model=name), 404, "model", "model_not_found")
                messages.add(message.replace(repr(name), "?"))
        for name in NAMES:
            for path, fields in OTHER_DOORS.items():
                response = await memory.http.post(path, json={"model": name, **fields})
                assert response.status_code == 404, (path, response.text)
        for path in ("%2e%2e%2fetc%2fpasswd", "..%2f..%2fetc%2fhostname", "nope", MODEL.upper()):
            assert_error(await memory.http.get(f"/v1/models/{path}"), 404, "model", "model_not_found")
        for wrong in (None, 5, ["x"]):
            assert_error(await memory.complete(model=wrong), 400, "model")
    assert seen == []
    with watched() as seen:
        Path(__file__).read_bytes()
    assert seen, "the watch is blind"
    assert len({message for message in messages if len(message) < 120}) <= 2
    assert (await memory.complete()).status_code == 200


async def test_pb_41_the_watch_would_notice(tmp_path: Path) -> None:
    with watched() as seen:
        (tmp_path / "x").write_text("x")
    assert any(event == "open" for event, _ in seen)


KEY = "sécret-ключ-" + "k" * 30


@pytest.mark.parametrize(
    "value",
    [None, b"Bearer", b"bearer " + KEY.encode(), b"Bearer \xff\xfe\x00", b"Bearer " + b"x" * 2**20,
     b"Bearer " + KEY.encode() + b" "],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
async def test_r_29_wrong_keys_are_401_and_never_logged(value: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    config = Config(server=ServerConfig(api_key=KEY), ledger=LedgerConfig(ledger=False))
    async with real_core(config) as core:
        with caplog.at_level(logging.DEBUG):
            headers = [] if value is None else [(b"authorization", value)]
            response = await core.http.post(TEXT, json=request_of(TEXT), headers=headers)
        assert_error(response, 401, code="invalid_api_key")
        assert KEY not in caplog.text + response.text
        right = [(b"authorization", b"Bearer " + KEY.encode())]
        assert (await core.http.post(TEXT, json=request_of(TEXT, max_tokens=1), headers=right)).status_code == 200


async def connected(core: RealCore) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = core.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


async def test_r_31_a_body_that_drips_in_is_ended_and_others_are_served() -> None:
    config = Config(limits=LimitsConfig(body_timeout=0.3), ledger=LedgerConfig(ledger=False))
    async with real_core(config, live=True) as core:
        reader, writer = await connected(core)
        writer.write(HEAD + b"content-length: 1000\r\n\r\n")
        began = time.monotonic()

        async def drip() -> None:
            while True:
                writer.write(b"x")
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        assert (await core.http.post(TEXT, json=request_of(TEXT, max_tokens=2))).status_code == 200
        line = await asyncio.wait_for(reader.readline(), 60)
        dripping.cancel()
        assert line.startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began >= 0.3
        writer.close()
        await alive(core)


async def test_r_31_a_body_without_end_is_cut_off_at_the_limit() -> None:
    """Chunks for as long as the server takes them: it must stop reading long before a gigabyte."""
    config = Config(limits=LimitsConfig(max_body_mib=1.0), ledger=LedgerConfig(ledger=False))
    async with real_core(config, live=True) as core:
        reader, writer = await connected(core)
        writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        answer = asyncio.create_task(reader.readline())
        sent, chunk = 0, b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        while not writer.is_closing() and sent < 2**30:
            writer.write(chunk)
            try:
                await writer.drain()
            except ConnectionError:
                break
            sent += 0x10000
        assert sent < 64 * 2**20
        assert (await answer).startswith(b"HTTP/1.1 413 ")
        writer.close()
        await alive(core)


async def test_r_31_headers_of_ten_megabytes() -> None:
    async with real_core(Config(ledger=LedgerConfig(ledger=False)), live=True) as core:
        reader, writer = await connected(core)
        answer = asyncio.create_task(reader.read())
        try:
            writer.write(HEAD)
            for index in range(160):
                writer.write(b"x-%d: " % index + b"v" * 65_536 + b"\r\n")
                await writer.drain()
        except ConnectionError:
            pass  # it has stopped listening
        assert (await answer).startswith(b"HTTP/1.1 431 ")
        writer.close()
        await alive(core)
