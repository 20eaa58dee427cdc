"""A field without effect is taken and named: in the response's header, once in the log, always in a counter."""

import json
import logging
from typing import Any

import httpx
import pytest

from ekiden.api.ignored import MAX_KEY, MAX_NAMES
from ekiden.config import Config, ServerConfig
from tests.api.conftest import Memory, assert_error, memory_client
from tests.api.scripted import MODEL, ScriptedEngine, make_app, make_tokenizer


@pytest.fixture
def memory(wide: Memory) -> Memory:
    return wide


USER = {"role": "user", "content": "hi"}


def named(response: httpx.Response) -> list[str]:
    """What the response says was ignored."""
    assert response.status_code == 200, response.text
    header = response.headers.get("x-ekiden-ignored-fields")
    return [] if header is None else header.split(", ")


async def counted(memory: Memory, field: str) -> float:
    text = (await memory.http.get("/metrics")).text
    values = [
        line.split()[-1] for line in text.splitlines() if "ignored_fields_total{" in line and f'field="{field}"' in line
    ]
    return float(values[0]) if values else 0.0


async def test_a_plain_request_names_nothing(memory: Memory) -> None:
    assert named(await memory.chat(temperature=0, user=None, zzz=None, stream_options=None)) == []
    assert named(await memory.complete(max_tokens=3)) == []


async def test_an_unknown_field_is_named_counted_and_told_once_in_the_log(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ekiden.api.ignored")
    for _ in range(3):
        assert named(await memory.chat(zzz={"a": 1}, user="me")) == ["zzz", "user"]
    assert named(await memory.complete(zzz=1)) == ["zzz"]
    assert [record.message.split()[0] for record in caplog.records] == ["zzz", "user"]
    assert await counted(memory, "other") == 4
    assert await counted(memory, "user") == 3
    assert await counted(memory, "zzz") == 0, "a client's text is no label"


async def test_streams_name_them_too(memory: Memory) -> None:
    response = await memory.chat(zzz=1, stream=True)
    assert named(response) == ["zzz"]
    assert response.text.endswith("data: [DONE]\n\n")


async def test_fields_within_are_named_by_their_path_whatever_their_index(memory: Memory) -> None:
    mark = {"type": "ephemeral"}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "a", "cache_control": mark}], "cache_control": mark},
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": mark, "new": 1}], "new": 1},
        {"role": "assistant", "tool_calls": [{"id": "c", "index": 0, "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "x", "new": 2},
    ]
    tool = {"type": "function", "function": {"name": "f", "new": 1, "parameters": {"type": "object"}}, "new": 1}
    tools = [tool, {**tool, "function": {"name": "g"}}]
    choice = {"type": "function", "function": {"name": "f", "new": 1}, "new": 1}
    response = await memory.chat(messages, tools=tools, tool_choice=choice)
    assert named(response) == [
        "messages[].cache_control",
        "messages[].content[].cache_control",
        "messages[].new",
        "messages[].content[].new",
        "messages[].tool_calls[].index",
        "tools[].new",
        "tools[].function.new",
        "tool_choice.new",
        "tool_choice.function.new",
    ]
    assert await counted(memory, "messages[].content[].cache_control") == 1


async def test_names_of_clients_cannot_break_the_header(memory: Memory) -> None:
    evil = {"a\r\nset-cookie: x": 1, "b, c": 1, "é\u2028": 1, "": 1, "k" * 5000: 1, 'q"\\': 1}
    response = await memory.chat(**evil)
    assert "set-cookie" not in response.headers
    assert named(response) == ["a??set-cookie??x", "b??c", "??", "?", "k" * MAX_KEY, "q??"]


async def test_thousand_names_are_cut_and_a_hundred_thousand_cost_little(memory: Memory) -> None:
    response = await memory.chat(**{f"k{number}": 1 for number in range(1000)})
    names = named(response)
    assert names[:2] == ["k0", "k1"]
    assert len(names) == MAX_NAMES + 1
    assert names[-1] == "..."
    body = json.dumps({"model": MODEL, "messages": [USER], **{f"k{number}": 1 for number in range(100_000)}})
    response = await memory.http.post(
        "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert len(named(response)) == MAX_NAMES + 1
    assert len(response.headers["x-ekiden-ignored-fields"]) < 3000


async def test_a_tool_that_cannot_run_is_left_out_and_named(memory: Memory) -> None:
    tools = [
        {"type": "web_search", "web_search": {"max": 5}},
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
        {"type": "custom", "custom": {"name": "g"}},
    ]
    assert named(await memory.chat(tools=tools)) == ["tools[type=web_search]", "tools[type=custom]"]
    prompt = memory.engine.tokenizer.decode(memory.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert '"name": "f"' in prompt
    assert "web_search" not in prompt
    assert named(await memory.chat(tools=tools[:1])) == ["tools[type=web_search]"]
    prompt = memory.engine.tokenizer.decode(memory.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert "tool" not in prompt


@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "web_search"}, {"type": "custom", "custom": {"name": "g"}},
     {"type": "function", "function": {"name": "g"}}],
    ids=str,
)  # fmt: skip
async def test_a_forced_choice_of_a_tool_that_was_left_out_is_refused(memory: Memory, choice: Any) -> None:
    tools = [{"type": "web_search"}, {"type": "custom", "custom": {"name": "g"}}]
    response = await memory.chat(tools=tools, tool_choice=choice)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("tool_choice")


async def test_errors_count_the_tools_that_were_left_out(memory: Memory) -> None:
    tools = [{"type": "web_search"}, {"type": "function", "function": {"name": "a b"}}]
    assert_error(await memory.chat(tools=tools), 400, "tools[1].function.name")


async def test_strict_servers_refuse_unknown_fields_at_their_place() -> None:
    engine = ScriptedEngine(make_tokenizer())
    app = make_app(engine, Config(server=ServerConfig(unknown_fields="refuse")))
    async with memory_client(app) as http:
        memory = Memory(engine, app, http)
        assert_error(await memory.chat(zzz=1), 400, "zzz", "unknown_parameter")
        assert_error(await memory.chat([USER, {**USER, "new": 1}]), 400, "messages[1].new", "unknown_parameter")
        part = {"type": "text", "text": "a", "new": 1}
        assert_error(await memory.chat([{"role": "user", "content": [part]}]), 400, "messages[0].content[0].new")
        assert_error(await memory.complete(zzz=1), 400, "zzz", "unknown_parameter")
        assert_error(await http.post("/tokenize", json={"prompt": "x", "zzz": 1}), 400, "zzz")
        assert len((await memory.chat(**{"z" * 5000: 1})).text) < 600
        assert named(await memory.chat(user="me", zzz=None)) == ["user"]
    assert len(engine.requests) == 1


async def test_the_content_of_extra_body_counts_as_if_it_stood_beside_it(memory: Memory) -> None:
    assert named(await memory.chat(extra_body={"top_k": 7, "zzz": 1, "temperature": 0.5}, temperature=0.25)) == ["zzz"]
    sampling = memory.engine.requests[-1].sampling
    assert (sampling.top_k, sampling.temperature) == (7, 0.25)
    assert named(await memory.chat(extra_body=None)) == []
    assert_error(await memory.chat(extra_body={"top_k": "x"}), 400, "top_k")
