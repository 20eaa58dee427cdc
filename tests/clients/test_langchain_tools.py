"""LangChain's tools and structured output."""

from typing import Any

import pydantic
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.api.scripted import END, MODEL, say
from tests.clients.conftest import Live

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: cold"


class City(pydantic.BaseModel):
    name: str
    people: int


@pytest.fixture
def chat(url: str, wide: None) -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, base_url=url, api_key=SecretStr("none"), max_retries=0, temperature=0)


async def test_a_tool_is_called_and_answered(chat: ChatOpenAI, live: Live) -> None:
    live.engine.script = lambda request: [*say(CALL), END]
    bound = chat.bind_tools([weather])
    asked: list[Any] = [HumanMessage("Oslo?")]
    for answer in (await bound.ainvoke(asked), await _streamed(bound, asked)):
        assert isinstance(answer, AIMessage)
        (call,) = answer.tool_calls
        assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
        assert answer.response_metadata["finish_reason"] == "tool_calls"
    live.engine.script = lambda request: [*say("It is cold."), END]
    result = ToolMessage(content=weather.invoke(call["args"]), tool_call_id=str(call["id"]))
    final = await bound.ainvoke([*asked, answer, result])
    assert final.content == "It is cold."


async def _streamed(bound: Any, asked: list[Any]) -> AIMessage:
    whole = None
    async for piece in bound.astream(asked):
        whole = piece if whole is None else whole + piece
    assert whole is not None
    return AIMessage(
        content=whole.content, tool_calls=whole.tool_calls, response_metadata=whole.response_metadata, id=whole.id
    )


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
async def test_structured_output(chat: ChatOpenAI, live: Live, method: Any) -> None:
    value = '{"name": "Oslo", "people": 700000}'
    text = value if method == "json_schema" else CALL.replace("weather", "City").replace('{"city": "Oslo"}', value)
    live.engine.script = lambda request: [*say(text), END]
    answer = await chat.with_structured_output(City, method=method).ainvoke("Oslo?")
    assert answer == City(name="Oslo", people=700_000)
    assert live.engine.requests[0].sampling.grammar is not None
