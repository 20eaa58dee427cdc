"""Forced tool calls on a model that has never seen a tool: the grammar alone makes them right."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ekiden.engine.parts import EngineParts
from ekiden.models.resolve import ModelFiles
from tests.endtoend.serving import Client, server

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
            },
            "required": ["city", "unit", "days"],
            "additionalProperties": False,
        },
    },
}
PING = {"type": "function", "function": {"name": "ping"}}


@pytest.fixture
async def client(parts: EngineParts, smollm2_files: ModelFiles) -> AsyncIterator[Client]:
    async with server(parts, smollm2_files) as running:
        yield running


def check_weather(call: dict[str, Any]) -> None:
    arguments = json.loads(call["function"]["arguments"])
    assert call["function"]["name"] == "get_weather"
    assert set(arguments) == {"city", "unit", "days"}
    assert len(arguments["city"]) <= 20
    assert arguments["unit"] in ("celsius", "fahrenheit")
    assert 1 <= arguments["days"] <= 14


@pytest.mark.parametrize("temperature", [0, 1.0])
async def test_a_named_call_is_made_whole_as_streamed(client: Client, temperature: float) -> None:
    fields: dict[str, Any] = {
        "tools": [PING, WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "max_tokens": 200,
        "temperature": temperature,
        "seed": 3,
    }
    (choice,) = (await client.chat("How is Oslo?", **fields))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    check_weather(call)
    chunks = [chunk["choices"][0] for chunk in await client.chat("How is Oslo?", stream=True, **fields)]
    parts = [part for chunk in chunks for part in chunk["delta"].get("tool_calls", [])]
    assert parts[0]["function"]["name"] == "get_weather"
    assert "".join(part["function"]["arguments"] for part in parts) == call["function"]["arguments"]
    assert [chunk["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["tool_calls"]


async def test_required_calls_are_made_one_or_several(client: Client) -> None:
    for parallel in (False, True):
        answer = await client.chat(
            "How is Oslo?", tools=[WEATHER], tool_choice="required", parallel_tool_calls=parallel, max_tokens=300
        )
        (choice,) = answer["choices"]
        calls = choice["message"]["tool_calls"]
        whole = calls if choice["finish_reason"] == "tool_calls" else calls[:-1]
        assert len(whole) >= 1
        assert parallel or len(calls) == 1
        for call in whole:
            check_weather(call)


async def test_a_function_without_parameters_is_called_with_none(client: Client) -> None:
    answer = await client.chat("Ping!", tools=[PING], tool_choice="required", parallel_tool_calls=False)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "ping", "arguments": "{}"}


async def test_a_call_cut_by_its_length_says_so(client: Client) -> None:
    answer = await client.chat("How is Oslo?", tools=[WEATHER], tool_choice="required", max_tokens=20)
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_conversation_goes_on_after_a_call(client: Client) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
    usages = []
    for content in (None, "", "absent"):
        said = {} if content == "absent" else {"content": content}
        messages = [
            {"role": "user", "content": "Ping!"},
            {"role": "assistant", **said, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "pong"},
        ]
        answer = await client.chat(messages=messages, tools=[PING], max_tokens=12)
        usages.append((answer["usage"]["prompt_tokens"], answer["choices"][0]["message"]))
    assert usages[0] == usages[1] == usages[2]
