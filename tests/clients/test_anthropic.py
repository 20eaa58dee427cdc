"""The ``anthropic`` client: messages whole and streamed, tools, counting."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.api.scripted import END, MODEL, say
from tests.clients.conftest import Live

ANSWER = "The sky scatters blue light."
CALL = '<tool_call>\n{"name": "get", "arguments": {"city": "Oslo"}}\n</tool_call>'
GET: Any = {
    "name": "get",
    "description": "Weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
ASK: Any = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": "Why?"}]}


@pytest.fixture
async def client(url: str, wide: None) -> AsyncIterator[anthropic.AsyncAnthropic]:
    base = url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as client:
        yield client


def prompt_of(live: Live) -> str:
    return live.engine.tokenizer.decode(live.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


async def test_a_whole_message(client: anthropic.AsyncAnthropic, live: Live) -> None:
    message = await client.messages.create(**ASK, system="Be short.", extra_body={"temperature": 0.5, "top_k": 5})
    assert [block.type for block in message.content] == ["text"]
    assert message.content[0].text == ANSWER
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    assert usage.output_tokens == len(ANSWER) + 1
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == len(live.engine.requests[0].prompt_token_ids)
    assert prompt_of(live).startswith("<|im_start|>system\nBe short.<|im_end|>")
    sampling = live.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (0.5, 5, 200)


async def test_a_streamed_message(client: anthropic.AsyncAnthropic) -> None:
    async with client.messages.stream(**ASK) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        message = await stream.get_final_message()
    assert text == ANSWER
    assert message.content[0].text == ANSWER  # type: ignore[union-attr]
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens == len(ANSWER) + 1
    kinds = [event.type async for event in await client.messages.create(**ASK, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_text_and_calls_come_as_blocks(client: anthropic.AsyncAnthropic, live: Live, streamed: bool) -> None:
    live.engine.script = lambda request: [*say(f"Let me see. {CALL}\n{CALL}"), END]
    if streamed:
        async with client.messages.stream(**ASK, tools=[GET]) as stream:
            message = await stream.get_final_message()
    else:
        message = await client.messages.create(**ASK, tools=[GET])
    text, first, second = message.content
    assert text.text == "Let me see."  # type: ignore[union-attr]
    assert first.type == second.type == "tool_use"
    assert (first.name, first.input) == (second.name, second.input) == ("get", {"city": "Oslo"})
    assert first.id != second.id
    assert message.stop_reason == "tool_use"


async def test_a_result_goes_back(client: anthropic.AsyncAnthropic, live: Live) -> None:
    messages: Any = [
        {"role": "user", "content": "Oslo?"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "get", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "-5"}]},
                {"type": "tool_result", "tool_use_id": "t1", "content": "no such city", "is_error": True},
                {"type": "text", "text": "Well?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    message = await client.messages.create(model=MODEL, max_tokens=50, messages=messages, tools=[GET])
    assert message.content[0].text == ANSWER  # type: ignore[union-attr]
    assert prompt_of(live).endswith(
        'Let me see.[get {"city": "Oslo"}]<|im_end|>\n<|im_start|>tool\n-5<|im_end|>\n'
        "<|im_start|>tool\nError: no such city<|im_end|>\n<|im_start|>user\nWell?<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_choices_of_tools(client: anthropic.AsyncAnthropic, live: Live) -> None:
    other: Any = {**GET, "name": "other"}
    choices: list[tuple[Any, bool, bool]] = [
        ({"type": "auto"}, False, False),
        ({"type": "none"}, False, False),
        ({"type": "any"}, True, True),
        ({"type": "any", "disable_parallel_tool_use": True}, True, True),
        ({"type": "tool", "name": "other"}, True, False),
    ]
    for choice, forced, either in choices:
        await client.messages.create(**ASK, tools=[GET, other], tool_choice=choice)
        grammar = live.engine.requests[-1].sampling.grammar
        assert (grammar is not None) == forced
        if grammar is not None:
            assert "other" in grammar.source
            assert ('\\"get\\"' in grammar.source) == either
    with pytest.raises(anthropic.BadRequestError, match="nobody"):
        await client.messages.create(**ASK, tools=[GET], tool_choice={"type": "tool", "name": "nobody"})


async def test_reasons_to_stop(client: anthropic.AsyncAnthropic, live: Live) -> None:
    stopped = await client.messages.create(**ASK, stop_sequences=["blue", "zzz"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "blue")
    assert stopped.content[0].text == "The sky scatters "
    cut = await client.messages.create(**{**ASK, "max_tokens": 7})
    assert (cut.stop_reason, cut.content[0].text) == ("max_tokens", ANSWER[:7])
    live.engine.script = lambda request: [*say(f"a {CALL}"), END]
    half = await client.messages.create(**{**ASK, "max_tokens": len(CALL) - 20}, tools=[GET])
    assert half.stop_reason == "max_tokens"
    assert [block.type for block in half.content] == ["text"], "half an object is no input"


async def test_the_model_goes_on_from_a_beginning_of_its_answer(client: anthropic.AsyncAnthropic, live: Live) -> None:
    messages: Any = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because<|im_end|>"}]
    await client.messages.create(model=MODEL, max_tokens=50, messages=messages)
    assert prompt_of(live).endswith("<|im_start|>assistant\nBecause<|im_end|>")
    special = [token for token in live.engine.requests[-1].prompt_token_ids if token in (256, 257)]
    assert len(special) == 3, "what looks like the end of a turn is text"
    with pytest.raises(anthropic.BadRequestError, match="white space"):
        await client.messages.create(
            model=MODEL, max_tokens=5, messages=[messages[0], {"role": "assistant", "content": "Because "}]
        )


async def test_counting(client: anthropic.AsyncAnthropic, live: Live) -> None:
    count = await client.messages.count_tokens(model=MODEL, messages=ASK["messages"], system="Be short.")
    await client.messages.create(**ASK, system="Be short.")
    assert count.input_tokens == len(live.engine.requests[0].prompt_token_ids)
    assert len(live.engine.requests) == 1


async def test_errors_have_the_shape_of_the_protocol(client: anthropic.AsyncAnthropic, live: Live) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.messages.create(**{**ASK, "model": "nobody"})
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content") as bad:
        await client.messages.create(model=MODEL, max_tokens=5, messages=[{"role": "user", "content": []}])
    assert bad.value.body["type"] == "error"  # type: ignore[index]
    live.engine.dies_at = 3
    with pytest.raises(anthropic.APIStatusError, match="Killed by the test"):
        async for _ in await client.messages.create(**ASK, stream=True):
            pass


EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


@pytest.mark.parametrize(
    ("text", "limit"), [(ANSWER, 200), (f"Let me see. {CALL}", 200), (ANSWER, 7)], ids=["text", "call", "cut"]
)
async def test_every_event_is_of_its_documented_type_and_in_its_place(
    url: str, live: Live, wide: None, text: str, limit: int
) -> None:
    live.engine.script = lambda request: [*say(text), END]
    body = {**ASK, "max_tokens": limit, "tools": [GET]}
    async with httpx.AsyncClient(timeout=60) as http:
        streamed = (await http.post(f"{url}/messages?beta=true", json={**body, "stream": True})).text
        whole = (await http.post(f"{url}/messages", json=body)).json()
    Message.model_validate(whole, strict=True)
    blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in streamed.strip().split("\n\n")]
    events = [EVENT.validate_json(block["data"], strict=True) for block in blocks]
    assert [event.type for event in events] == [block["event"] for block in blocks]
    open_at: int | None = None
    for event in events[1:-2]:
        if event.type == "content_block_start":
            assert open_at is None
            open_at = event.index
        else:
            assert event.type in ("content_block_delta", "content_block_stop")
            assert event.index == open_at
            open_at = None if event.type == "content_block_stop" else open_at
    assert open_at is None
    assert [event.type for event in (events[0], *events[-2:])] == ["message_start", "message_delta", "message_stop"]
    assert events[-2].type == "message_delta"
    assert events[-2].usage.model_dump(exclude_none=True) == whole["usage"]
