"""Pydantic AI's agents. Those with a tool run at the server whose model calls tools."""

import asyncio
from typing import Any, Literal

import pydantic
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from report import AGENT_MODEL, AGENT_URL, MODEL, QUESTION, URL, run, weather

settings: Any = {"temperature": 0, "max_tokens": 32}


class Weather(pydantic.BaseModel):
    city: Literal["Oslo", "Kyoto"]


def chat_model(url: str, model: str) -> Any:
    return OpenAIChatModel(model, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))


def chat() -> None:
    assert Agent(chat_model(URL, MODEL), model_settings=settings).run_sync(QUESTION).output


def stream() -> None:
    async def read() -> str:
        async with Agent(chat_model(URL, MODEL), model_settings=settings).run_stream(QUESTION) as result:
            return "".join([piece async for piece in result.stream_text(delta=True)])

    assert asyncio.run(read())


def _uses_its_tool(model: Any) -> None:
    answer = Agent(model, tools=[weather]).run_sync("How is the weather in Oslo?")
    assert "21 degrees" in answer.output
    parts = [part.part_kind for message in answer.all_messages() for part in message.parts]
    assert "tool-return" in parts


def tools() -> None:
    _uses_its_tool(chat_model(AGENT_URL, AGENT_MODEL))


def messages() -> None:
    provider = AnthropicProvider(base_url=AGENT_URL, api_key="none")
    _uses_its_tool(AnthropicModel(AGENT_MODEL, provider=provider))


def responses() -> None:
    provider = OpenAIProvider(base_url=f"{AGENT_URL}/v1", api_key="none")
    _uses_its_tool(OpenAIResponsesModel(AGENT_MODEL, provider=provider))


def structured_output() -> None:
    agent = Agent(chat_model(URL, MODEL), output_type=NativeOutput(Weather), model_settings=settings)
    assert isinstance(agent.run_sync(QUESTION).output, Weather)


if __name__ == "__main__":
    run(
        "pydantic-ai-slim",
        {
            "chat": chat,
            "stream": stream,
            "tools": tools,
            "structured output": structured_output,
            "messages": messages,
            "responses": responses,
        },
    )
