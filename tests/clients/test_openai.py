"""The official ``openai`` client, with and without asyncio."""

import asyncio
import math
from typing import Any

import openai
import pytest

from ekiden.state.request import Refusal, RefusalReason
from tests.api.real_core import real_core
from tests.api.scripted import END, MODEL, say
from tests.clients.conftest import Live

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(live: Live):
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_official_client_chat(live: Live, client):
    live.engine.script = lambda request: [*say("Grüße"), END]
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=1, n=2)
    assert [choice.message.content for choice in answer.choices] == ["Grüße", "Grüße"]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs.content[0].top_logprobs[0].token == "G"
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    text, usage = "", answer.usage
    async for chunk in stream:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == "Grüße"
    assert usage is not None
    assert usage.completion_tokens == 8
    async with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as helper:
        final = await helper.get_final_completion()
    assert final.choices[0].message.content == "Grüße"


async def test_official_client_replays_its_own_answers(live: Live, client):
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    messages = [*MESSAGES, answer.choices[0].message.model_dump(), MESSAGES[0]]
    assert (await client.chat.completions.create(model=MODEL, messages=messages)).choices[0].message.content == "ok"


async def test_official_client_completions_and_models(live: Live, client):
    answer = await client.completions.create(model=MODEL, prompt=["a", "b"], logprobs=1, seed=3)
    assert [choice.text for choice in answer.choices] == ["ok", "ok"]
    assert answer.choices[0].logprobs.tokens == ["o", "k"]
    stream = await client.completions.create(model=MODEL, prompt="a", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "ok"
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL


async def test_official_client_errors(live: Live, client):
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="other", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=-1)
    assert wrong.value.param == "temperature"
    live.engine.dies_at = 1
    with pytest.raises(openai.APIError, match="send the request again"):
        async for _ in await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True):
            pass


async def test_official_sync_client(live: Live):
    def talk() -> tuple[str, str]:
        with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
            answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)
            stream: Any = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            return answer.choices[0].message.content or "", streamed

    assert await asyncio.to_thread(talk) == ("ok", "ok")


@pytest.mark.parametrize("reason", [RefusalReason.TENANT_RATE, RefusalReason.QUEUE_FULL_REQUESTS])
async def test_waiting_and_trying_again_as_told(live: Live, reason):
    """The client waits as long as ``retry-after-ms`` says, and the second try is answered."""
    refusals = [Refusal(reason=reason, message="later", retry_after=0.05)]
    live.engine.refuse = lambda request: refusals.pop() if refusals else None
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=1) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == "ok"
    first, second = live.engine.requests
    assert second.arrival_time - first.arrival_time >= 0.05


async def test_a_tenant_over_its_rate_is_told_so(live: Live, client):
    refusal = Refusal(reason=RefusalReason.TENANT_RATE, message="later", retry_after=2.5)
    live.engine.refuse = lambda request: refusal
    with pytest.raises(openai.RateLimitError) as told:
        await client.completions.create(model=MODEL, prompt="x")
    assert told.value.response.headers["retry-after"] == "3"
    assert told.value.code == "tenant_rate"


async def test_official_client_embeddings():
    """It asks for base64 unless it is told otherwise, and unpacks it."""
    async with real_core(live=True) as core, openai.AsyncOpenAI(base_url=f"{core.url}/v1", api_key="none") as client:
        made = await client.embeddings.create(model=MODEL, input=["hi", "there"])
        plain = await client.embeddings.create(model=MODEL, input=["hi", "there"], encoding_format="float")
        cut = await client.embeddings.create(model=MODEL, input="hi", dimensions=3, user="u", encoding_format="float")
    assert made.usage.total_tokens == len("hithere")
    for packed, numbers in zip(made.data, plain.data, strict=True):
        assert packed.embedding == pytest.approx(numbers.embedding, abs=1e-7)
        assert math.hypot(*packed.embedding) == pytest.approx(1.0, abs=1e-6)
    assert [len(each.embedding) for each in cut.data] == [3]
    assert cut.data[0].embedding[0] / cut.data[0].embedding[1] == pytest.approx(
        made.data[0].embedding[0] / made.data[0].embedding[1], rel=1e-5
    )
