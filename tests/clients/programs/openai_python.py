"""The ``openai`` package for Python: chat, completions, responses."""

import json
from typing import Any

import openai
from report import MODEL, QUESTION, URL, WEATHER, run, weather

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
asked: list[Any] = [{"role": "user", "content": QUESTION}]
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}}


def chat() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=asked, max_completion_tokens=8, temperature=0)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def stream() -> None:
    options: Any = {"model": MODEL, "max_completion_tokens": 8, "temperature": 0}
    whole = client.chat.completions.create(messages=asked, **options).choices[0].message.content
    pieces = client.chat.completions.create(
        messages=asked, stream=True, stream_options={"include_usage": True}, **options
    )
    chunks = list(pieces)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole
    assert chunks[-1].usage.completion_tokens == 8


def tools() -> None:
    messages = [*asked]
    options: Any = {
        "model": MODEL,
        "tools": [TOOL],
        "parallel_tool_calls": False,
        "max_completion_tokens": 64,
        "temperature": 0,
    }
    first = client.chat.completions.create(messages=messages, tool_choice="required", **options).choices[0]
    assert first.finish_reason == "tool_calls"
    (call,) = first.message.tool_calls
    result = weather(**json.loads(call.function.arguments))
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    last = client.chat.completions.create(messages=messages, tool_choice="none", **options).choices[0]
    assert last.message.content


def structured_output() -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER, "strict": True}}
    answer = client.chat.completions.create(model=MODEL, messages=asked, response_format=shape, temperature=0)
    assert json.loads(answer.choices[0].message.content)["city"] in ("Oslo", "Kyoto")


def logprobs() -> None:
    answer = client.completions.create(model=MODEL, prompt="The sky", max_tokens=4, logprobs=2, echo=True)
    found = answer.choices[0].logprobs
    assert "".join(found.tokens) == answer.choices[0].text
    assert len(found.top_logprobs[-1]) >= 2


def responses() -> None:
    options: Any = {"model": MODEL, "temperature": 0, "max_output_tokens": 64}
    tool: Any = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
    first = client.responses.create(
        input=QUESTION, tools=[tool], tool_choice="required", parallel_tool_calls=False, **options
    )
    (call,) = [item for item in first.output if item.type == "function_call"]
    history: Any = [
        {"role": "user", "content": QUESTION},
        *[item.model_dump() for item in first.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": weather(**json.loads(call.arguments))},
    ]
    with client.responses.stream(input=history, **options) as events:
        told = list(events)
    assert "".join(event.delta for event in told if event.type == "response.output_text.delta")
    assert told[-1].type in ("response.completed", "response.incomplete")


def embeddings() -> None:
    found = client.embeddings.create(model=MODEL, input=["The sky is blue.", "A train to Kyoto."])
    assert len(found.data) == 2
    assert abs(sum(x * x for x in found.data[0].embedding) - 1) < 1e-3


def errors() -> None:
    try:
        client.chat.completions.create(model=MODEL, messages=asked, temperature=-1)
    except openai.BadRequestError as error:
        assert error.param == "temperature"
    else:
        raise AssertionError("a temperature of -1 was taken")


if __name__ == "__main__":
    run(
        "openai",
        {
            "chat": chat,
            "stream": stream,
            "tools": tools,
            "structured output": structured_output,
            "log-probabilities": logprobs,
            "responses": responses,
            "embeddings": embeddings,
            "errors": errors,
        },
    )
