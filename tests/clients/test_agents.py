"""Whole conversations of agents, streamed: a tool call, its result, and the answer, as each agent puts them.

The bodies in ``tests/data/agents`` were written by us from what the agents document and send; ``base`` is what all
turns share.
"""

import json
from pathlib import Path
from typing import Any

import anthropic.types
import openai.types.chat
import openai.types.responses
import pytest
from pydantic import TypeAdapter

from ekiden.api.ignored import HEADER
from tests.api.conftest import Memory, wide
from tests.api.scripted import END, say

__all__ = ["wide"]

AGENTS = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in (Path(__file__).parents[1] / "data" / "agents").glob("*.json")
}
TURNS = [
    pytest.param(name, turn, id=f"{name}-{index + 1}")
    for name, told in sorted(AGENTS.items())
    for index, turn in enumerate(told["turns"])
]

CHUNK: TypeAdapter[Any] = TypeAdapter(openai.types.chat.ChatCompletionChunk)
RESPONSE_EVENT: TypeAdapter[Any] = TypeAdapter(openai.types.responses.ResponseStreamEvent)
MESSAGE_EVENT: TypeAdapter[Any] = TypeAdapter(anthropic.types.RawMessageStreamEvent)

Told = tuple[str, list[list[Any]]]
"""The text of an answer and its calls, each with its name and its input."""


def of_chat(data: list[str]) -> Told:
    assert data.pop() == "[DONE]"
    text, calls = "", list[list[Any]]()
    chunks = [CHUNK.validate_json(each, strict=True) for each in data]
    for delta in (choice.delta for chunk in chunks for choice in chunk.choices):
        text += delta.content or ""
        for call in delta.tool_calls or ():
            if call.id is not None:
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments
    assert chunks[-1].usage is not None
    assert chunks[-2].choices[0].finish_reason == ("tool_calls" if calls else "stop")
    return text, [[name, json.loads(arguments)] for name, arguments in calls]


def of_responses(data: list[str]) -> Told:
    events = [RESPONSE_EVENT.validate_json(each, strict=True) for each in data]
    last = events[-1]
    assert last.type == "response.completed"
    calls: list[list[Any]] = []
    for item in last.response.output:
        if item.type == "function_call":
            calls.append([item.name, json.loads(item.arguments)])
        elif item.type == "custom_tool_call":
            calls.append([item.name, item.input])
    deltas = (event.delta for event in events if event.type == "response.output_text.delta")
    assert last.response.output_text == "".join(deltas)
    return last.response.output_text, calls


def of_messages(data: list[str]) -> Told:
    text, inputs, calls = "", list[str](), list[list[Any]]()
    for event in [MESSAGE_EVENT.validate_json(each, strict=True) for each in data]:
        if event.type == "content_block_start" and event.content_block.type == "tool_use":
            calls.append([event.content_block.name])
            inputs.append("")
        elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            inputs[-1] += event.delta.partial_json
        elif event.type == "content_block_delta":
            text += event.delta.text
        elif event.type == "message_delta":
            assert event.delta.stop_reason == ("tool_use" if calls else "end_turn")
    return text, [[*call, json.loads(given)] for call, given in zip(calls, inputs, strict=True)]


READERS = {"chat": of_chat, "responses": of_responses, "messages": of_messages}


@pytest.mark.parametrize(("name", "turn"), TURNS)
async def test_a_turn_of_an_agent(wide: Memory, name: str, turn: dict[str, Any]) -> None:
    agent = AGENTS[name]
    wide.engine.script = lambda request: [*say(turn["answer"]), END]
    path = agent["path"]
    response = await wide.http.post(path, json={**agent["base"], **turn["body"]}, headers=agent["headers"])
    assert response.status_code == 200, response.text
    assert sorted(response.headers[HEADER.decode()].split(", ")) == sorted(turn["ignored"])
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    door = path.removeprefix("/v1/").split("/")[0].split("?")[0]
    assert READERS[door](data) == (turn["text"], turn["calls"])
    prompt = wide.engine.tokenizer.decode(wide.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    for part in turn["prompt_holds"]:
        assert part in prompt
    assert "web_search" not in prompt, "the model is not offered what nobody can run"


async def test_claude_code_counts_what_it_would_ask(wide: Memory) -> None:
    agent = AGENTS["claude_code"]
    body = {key: value for key, value in agent["base"].items() if key in ("model", "system", "tools", "thinking")}
    messages = agent["turns"][1]["body"]["messages"]
    path = "/v1/messages/count_tokens?beta=true"
    counted = await wide.http.post(path, json={**body, "messages": messages}, headers=agent["headers"])
    await wide.http.post("/v1/messages", json={**agent["base"], "messages": messages})
    assert counted.json() == {"input_tokens": len(wide.engine.requests[-1].prompt_token_ids)}
