"""What OpenAI's protocol has and this server has not is refused with the way out, and docs/api.md says so."""

from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import Memory, assert_error
from tests.api.scripted import MODEL

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}


async def respond(memory: Memory, **fields: Any) -> Any:
    return await memory.http.post("/v1/responses", json={"model": MODEL, "input": "hi", **fields})


async def test_allowed_tools(memory: Memory) -> None:
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}
    tools = [{"type": "function", "function": FUNCTION}]
    answers = [
        await memory.chat(tools=tools, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}),
        await respond(
            memory,
            tools=[{"type": "function", **FUNCTION}],
            tool_choice={"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
        ),
    ]
    for answer in answers:
        assert "send in tools only the functions" in assert_error(answer, 400, "tool_choice.type")
    assert memory.engine.requests == []
    assert "`allowed_tools`" in PAGE


@pytest.mark.parametrize(
    "fields",
    [{"top_logprobs": 3}, {"top_logprobs": True}, {"include": ["message.output_text.logprobs"]}],
    ids=repr,
)
async def test_responses_have_no_log_probabilities(memory: Memory, fields: dict[str, Any]) -> None:
    (name,) = fields
    assert "/v1/chat/completions" in assert_error(await respond(memory, **fields), 400, name)
    assert memory.engine.requests == []
    section = PAGE.split("`/v1/responses` takes", 1)[1].split("\n\n", 1)[0]
    assert "log-probabilities" in section
    assert f"`{name}`" in section


async def test_saying_that_none_are_wanted_is_fine(memory: Memory) -> None:
    assert (await respond(memory, top_logprobs=0, include=[])).status_code == 200
    assert (await respond(memory, top_logprobs=None, include=None)).status_code == 200
