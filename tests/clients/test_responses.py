"""The ``openai`` client's newer half: responses, whole, parsed and streamed, with tools."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.api.scripted import END, MODEL, say
from tests.clients.conftest import Live

ANSWER = "The sky scatters blue light."
CALL = '<tool_call>\n{"name": "get", "arguments": {"city": "Oslo"}}\n</tool_call>'
PATCHING = '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin Patch"}}\n</tool_call>'
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
GET: Any = {
    "type": "function",
    "name": "get",
    "description": "Weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


@pytest.fixture
async def client(url: str, live: Live, wide: None) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


async def test_a_whole_response(client: openai.AsyncOpenAI, live: Live) -> None:
    response = await client.responses.create(
        model=MODEL, input="Why?", instructions="Be short.", max_output_tokens=99, temperature=0.5, store=False
    )
    assert response.output_text == ANSWER
    assert response.status == "completed"
    assert response.object == "response"
    assert response.store is False  # type: ignore[attr-defined]  # the client's type leaves it out
    assert (response.temperature, response.max_output_tokens) == (0.5, 99)
    assert response.usage is not None
    assert response.usage.output_tokens == len(ANSWER) + 1
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    prompt = live.engine.tokenizer.decode(live.engine.requests[0].prompt_token_ids, skip_special_tokens=False)
    assert prompt.startswith("<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>")


async def test_a_streamed_response_tells_each_step(client: openai.AsyncOpenAI) -> None:
    events = [event async for event in await client.responses.create(model=MODEL, input="Why?", stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == ANSWER
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == ANSWER
    assert last.response.usage is not None


async def test_the_clients_own_stream_puts_the_response_together(client: openai.AsyncOpenAI, live: Live) -> None:
    live.engine.script = lambda request: [*say(f"Let me see. {CALL}"), END]
    async with client.responses.stream(model=MODEL, input="Oslo?", tools=[GET]) as stream:
        async for _ in stream:
            pass
        response = await stream.get_final_response()
    message, call = response.output
    assert message.type == "message"
    assert response.output_text == "Let me see."
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("get", '{"city": "Oslo"}')


async def test_a_call_and_its_result(client: openai.AsyncOpenAI, live: Live) -> None:
    live.engine.script = lambda request: [*say(f"{CALL}\n{CALL}"), END]
    response = await client.responses.create(model=MODEL, input="Oslo?", tools=[GET])
    calls = [item for item in response.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"city": "Oslo"}] * 2
    assert len({call.call_id for call in calls}) == 2
    live.engine.script = lambda request: [*say("Cold."), END]
    items: list[Any] = [{"role": "user", "content": "Oslo?"}, *response.output]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "-5"} for call in calls]
    answer = await client.responses.create(model=MODEL, input=items, tools=[GET])
    assert answer.output_text == "Cold."
    prompt = live.engine.tokenizer.decode(live.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert prompt.count("<|im_start|>assistant") == 2
    assert prompt.count("<|im_start|>tool\n-5") == 2


async def test_a_call_streamed(client: openai.AsyncOpenAI, live: Live) -> None:
    live.engine.script = lambda request: [*say(CALL), END]
    events = [e async for e in await client.responses.create(model=MODEL, input="Oslo?", tools=[GET], stream=True)]
    kinds = [event.type for event in events]
    assert kinds[2] == "response.output_item.added"
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == '{"city": "Oslo"}'
    assert kinds[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_a_cut_response_is_incomplete(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(model=MODEL, input="Why?", max_output_tokens=7)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == ANSWER[:7]
    events = [e async for e in await client.responses.create(model=MODEL, input="x", max_output_tokens=7, stream=True)]
    assert events[-1].type == "response.incomplete"


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


async def test_a_parsed_response_has_the_schema_of_its_class(client: openai.AsyncOpenAI, live: Live) -> None:
    live.engine.script = lambda request: [*say('{"city": "Oslo", "degrees": -5}'), END]
    response = await client.responses.parse(model=MODEL, input="Oslo?", text_format=Weather)
    assert response.output_parsed == Weather(city="Oslo", degrees=-5)
    grammar = live.engine.requests[0].sampling.grammar
    assert grammar is not None
    assert json.loads(grammar.source)["required"] == ["city", "degrees"]
    chat = await client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "Oslo?"}], response_format=Weather
    )
    assert chat.choices[0].message.parsed == Weather(city="Oslo", degrees=-5)


async def test_state_is_refused(client: openai.AsyncOpenAI) -> None:
    earlier: list[dict[str, Any]] = [{"previous_response_id": "resp_1"}, {"conversation": "c"}]
    for fields in earlier:
        with pytest.raises(openai.BadRequestError, match="keeps nothing between calls"):
            await client.responses.create(model=MODEL, input="x", **fields)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_1")


async def test_an_error_in_a_stream_is_told(client: openai.AsyncOpenAI, live: Live) -> None:
    live.engine.dies_at = 3
    events = [event async for event in await client.responses.create(model=MODEL, input="x", stream=True)]
    told, last = events[-2:]
    assert told.type == "error"
    assert "Killed by the test" in told.message
    assert told.code == "engine_unavailable"
    assert last.type == "response.failed", "clients that wait for the response's own end see it too"
    assert last.response.status == "failed"
    assert last.response.error is not None
    assert last.response.error.message == told.message


EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


@pytest.mark.parametrize(
    ("text", "limit", "dies_at"),
    [
        (ANSWER, None, None),
        (f"Let me see. {CALL}", None, None),
        (PATCHING, None, None),
        (CALL.replace('"get"', '"crm__get"'), None, None),
        (ANSWER, 7, None),
        (ANSWER, None, 3),
    ],
    ids=["text", "call", "custom", "namespace", "cut", "failed"],
)
async def test_every_event_is_of_its_documented_type(
    url: str, live: Live, wide: None, text: str, limit: int | None, dies_at: int | None
) -> None:
    """The package itself takes what it is given; this checks each event, and all in it, as strict clients do."""
    live.engine.script = lambda request: [*say(text), END]
    live.engine.dies_at = dies_at
    body = {
        "model": MODEL,
        "input": "x",
        "max_output_tokens": limit,
        "tools": [GET, PATCH, {"type": "namespace", "name": "crm", "description": "d", "tools": [GET]}],
    }
    async with httpx.AsyncClient(timeout=60) as http:
        streamed = (await http.post(f"{url}/responses", json={**body, "stream": True})).text
        events = [
            json.loads(line.removeprefix("data: ")) for line in streamed.splitlines() if line.startswith("data: ")
        ]
        for number, event in enumerate(events):
            assert EVENT.validate_python(event, strict=True).type == event["type"]
            assert event["sequence_number"] == number
        if dies_at is None:
            whole = (await http.post(f"{url}/responses", json=body)).json()
            Response.model_validate(whole, strict=True)
            last = events[-1]["response"]
            assert [_content(item) for item in last["output"]] == [_content(item) for item in whole["output"]]
            done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
            assert done == last["output"]


def _content(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}


async def test_embeddings_are_refused_with_the_reason(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="gives no embeddings"):
        await client.embeddings.create(model=MODEL, input="x")
