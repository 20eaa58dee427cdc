"""LangChain's own client for OpenAI-compatible servers."""

import asyncio

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from openai import DefaultAsyncHttpxClient
from pydantic import SecretStr

from tests.api.real_core import real_core
from tests.api.scripted import END, MODEL, say
from tests.clients.conftest import Live

ANSWER = "The sky scatters blue light."


@pytest.fixture
def chat(url: str) -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, base_url=url, api_key=SecretStr("none"), max_retries=0, temperature=0)


async def test_invoke(chat: ChatOpenAI, live: Live):
    answer = await chat.ainvoke([SystemMessage("Be short."), HumanMessage("Why is the sky blue?")])
    assert answer.content == ANSWER
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == len(ANSWER) + 1
    assert live.engine.requests[0].sampling.temperature == 0


async def test_from_a_thread(chat: ChatOpenAI):
    assert (await asyncio.to_thread(chat.invoke, "Why?")).content == ANSWER


async def test_stream_with_usage(chat: ChatOpenAI):
    whole = None
    pieces = 0
    async for piece in chat.astream("Why?", stream_usage=True):
        whole = piece if whole is None else whole + piece
        pieces += 1
    assert whole is not None
    assert whole.content == ANSWER
    assert pieces > len(ANSWER)
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == len(ANSWER) + 1


async def test_batch_stop_and_limits(chat: ChatOpenAI, live: Live):
    answers = await chat.abatch(["a", "b", "c"], stop=["blue"])
    assert [answer.content for answer in answers] == ["The sky scatters "] * 3
    live.engine.script = lambda request: [*say("x" * 50), END]
    cut = await chat.bind(max_tokens=3).ainvoke("a")
    assert cut.content == "xxx"
    assert cut.response_metadata["finish_reason"] == "length"


async def test_logprobs(chat: ChatOpenAI):
    answer = await chat.bind(logprobs=True, top_logprobs=2).ainvoke("a")
    content = answer.response_metadata["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == ANSWER
    assert len(content[0]["top_logprobs"]) == 2


async def test_langchain_embeddings():
    """As its makers advise for other servers: texts are sent, and not the token ids of OpenAI's models."""
    async with real_core(live=True) as core, DefaultAsyncHttpxClient() as http:
        embeddings = OpenAIEmbeddings(
            model=MODEL,
            base_url=f"{core.url}/v1",
            api_key=SecretStr("none"),
            check_embedding_ctx_length=False,
            http_async_client=http,
        )
        documents = await embeddings.aembed_documents(["a text", "another"])
        query = await embeddings.aembed_query("a text")
    assert query == documents[0] != documents[1]
