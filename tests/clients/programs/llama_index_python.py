"""LlamaIndex's ``OpenAILike``, and its agent at the server whose model calls tools."""

import asyncio
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from report import AGENT_MODEL, AGENT_URL, MODEL, QUESTION, URL, run, weather


def model_at(url: str, model: str) -> Any:
    return OpenAILike(
        model=model,
        api_base=f"{url}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=4096,
        max_tokens=64,
        temperature=0,
        max_retries=0,
    )


model = model_at(URL, MODEL)
asked = [ChatMessage(role="user", content=QUESTION)]


def chat() -> None:
    assert model.chat(asked).message.content


def stream() -> None:
    assert "".join(piece.delta or "" for piece in model.stream_chat(asked)) == model.chat(asked).message.content


def completions() -> None:
    text = OpenAILike(model=MODEL, api_base=f"{URL}/v1", api_key="none", is_chat_model=False, max_tokens=8)
    assert text.complete("The sky").text


def tools() -> None:
    async def work() -> str:
        agent = FunctionAgent(tools=[FunctionTool.from_defaults(weather)], llm=model_at(AGENT_URL, AGENT_MODEL))
        return str(await agent.run("How is the weather in Oslo?"))

    assert "21 degrees" in asyncio.run(work())


if __name__ == "__main__":
    run(
        "llama-index-llms-openai-like",
        {"chat": chat, "stream": stream, "completions": completions, "tools": tools},
    )
