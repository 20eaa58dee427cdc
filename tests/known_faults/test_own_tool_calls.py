"""A call that the model chose to make is whole, or it is text, and the finish reason is the true one: on every door,
streamed and not."""

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import pytest

from tests.api.conftest import Memory
from tests.api.scripted import END, MODEL, say
from tests.api.test_tools import KNOWS_TOOLS, with_template

CITY = {"type": "object", "properties": {"n": {"type": "integer"}}}
USER = [{"role": "user", "content": "hi"}]
DOORS = ("chat", "responses", "messages")


@pytest.fixture
async def memory() -> AsyncIterator[Memory]:
    async with with_template(KNOWS_TOOLS) as memory:
        yield memory


class Read(NamedTuple):
    """What an answer says, whatever its door: its text, its calls with their arguments' text, and why it ended."""

    text: str
    calls: list[tuple[str, str]]
    ended: str


def body_of(door: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    chosen = fields.pop("tool_choice", None)
    limit = fields.pop("max_tokens", 300)
    tool = {"name": "f", "parameters": CITY}
    if door == "chat":
        body: dict[str, Any] = {
            "messages": USER,
            "max_tokens": limit,
            "tools": [{"type": "function", "function": tool}],
        }
        path = "/v1/chat/completions"
    elif door == "responses":
        body, path = (
            {"input": "hi", "max_output_tokens": limit, "tools": [{"type": "function", **tool}]},
            "/v1/responses",
        )
    else:
        body = {"messages": USER, "max_tokens": limit, "tools": [{"name": "f", "input_schema": CITY}]}
        path, chosen = "/v1/messages", {"type": "any"} if chosen else None
    return path, {"model": MODEL, **body, **fields, **({"tool_choice": chosen} if chosen else {})}


def read_whole(door: str, answer: dict[str, Any]) -> Read:
    if door == "chat":
        choice = answer["choices"][0]
        functions = [call["function"] for call in choice["message"].get("tool_calls", [])]
        calls = [(function["name"], function["arguments"]) for function in functions]
        return Read(choice["message"]["content"] or "", calls, choice["finish_reason"])
    if door == "responses":
        output = answer["output"]
        text = "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"])
        calls = [(item["name"], item["arguments"]) for item in output if item["type"] == "function_call"]
        return Read(text, calls, answer["status"])
    text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
    blocks = [block for block in answer["content"] if block["type"] == "tool_use"]
    return Read(text, [(block["name"], json.dumps(block["input"])) for block in blocks], answer["stop_reason"])


def read_stream(door: str, response: httpx.Response) -> Read:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    told = [json.loads(line) for line in lines]
    if door == "responses":
        return read_whole(door, told[-1]["response"])
    text, calls, ended = "", list[tuple[str, str]](), ""
    for event in told:
        if door == "chat":
            choice = event["choices"][0]
            text += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls", []):
                if "id" in part:
                    calls.append((part["function"]["name"], ""))
                calls[-1] = (calls[-1][0], calls[-1][1] + part["function"]["arguments"])
            ended = choice["finish_reason"] or ended
        elif event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            calls.append((event["content_block"]["name"], ""))
        elif event["type"] == "content_block_delta":
            text += event["delta"].get("text", "")
            if "partial_json" in event["delta"]:
                calls[-1] = (calls[-1][0], calls[-1][1] + event["delta"]["partial_json"])
        elif event["type"] == "message_delta":
            ended = event["delta"]["stop_reason"]
    return Read(text, calls, ended)


async def asked(memory: Memory, door: str, **fields: Any) -> list[Read]:
    """The answer, whole and streamed."""
    path, body = body_of(door, **fields)
    whole = await memory.http.post(path, json=body)
    assert whole.status_code == 200, whole.text
    streamed = await memory.http.post(path, json=body | {"stream": True})
    return [read_whole(door, whole.json()), read_stream(door, streamed)]


def written(memory: Memory, text: str) -> None:
    memory.engine.script = lambda request: [*say(text), END]


ENDED = {"chat": "stop", "responses": "completed", "messages": "end_turn"}
LIMIT = {"chat": "length", "responses": "incomplete", "messages": "max_tokens"}
CALLED = {"chat": "tool_calls", "responses": "completed", "messages": "tool_use"}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "arguments",
    [
        '{"n":1,}',
        "{n:1}",
        '"no object"',
        "[1]",
        "7",
        '{"n":1',
        '{"n": NaN}',
        "{'n': 1}",
        '{"n":1 "m":2}',
        '"{\\"n\\":"',
    ],
)
async def test_own_09_a_malformed_call_is_text(memory: Memory, door: str, arguments: str) -> None:
    text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}'
    text += "" if arguments == '{"n":1' else "}\n</tool_call>"
    written(memory, text)
    assert await asked(memory, door) == [Read(text, [], ENDED[door])] * 2


@pytest.mark.parametrize("door", DOORS)
async def test_own_09_a_call_that_the_limit_cuts_is_text(memory: Memory, door: str) -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"n": 12345}}\n</tool_call>'
    written(memory, text)
    for limit in range(len("<tool_call>\n{"), text.index("}}"), 5):
        assert await asked(memory, door, max_tokens=limit) == [Read(text[:limit], [], LIMIT[door])] * 2
    for read in await asked(memory, door):
        assert read == Read("", [("f", '{"n": 12345}')], CALLED[door])


@pytest.mark.parametrize("door", DOORS)
async def test_own_09_a_whole_call_stays_one_beside_another_that_is_cut(memory: Memory, door: str) -> None:
    one = '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>'
    written(memory, f"{one}\n{one}")
    for read in await asked(memory, door, max_tokens=len(one) + 20):
        assert read == Read(one[:19], [("f", '{"n": 1}')], LIMIT[door])


async def test_own_09_a_stop_string_inside_a_forced_call_is_no_call(memory: Memory) -> None:
    written(memory, '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>')
    for read in await asked(memory, "chat", tool_choice="required", stop=["1}"]):
        assert read.ended == "stop"
    for read in await asked(memory, "messages", tool_choice="required", stop_sequences=["1}"]):
        assert read.ended == "stop_sequence"
