"""The ``anthropic`` package for Python: messages."""

import json
from typing import Any

import anthropic
from report import MODEL, QUESTION, URL, WEATHER, run, weather

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
asked: list[Any] = [{"role": "user", "content": QUESTION}]
options: Any = {"model": MODEL, "extra_body": {"temperature": 0}}


def chat() -> None:
    answer = client.messages.create(messages=asked, max_tokens=8, system="Be short.", **options)
    assert answer.content[0].text
    assert answer.usage.output_tokens == 8
    assert answer.stop_reason == "max_tokens"


def stream() -> None:
    whole = client.messages.create(messages=asked, max_tokens=8, **options).content[0].text
    with client.messages.stream(messages=asked, max_tokens=8, **options) as pieces:
        assert "".join(pieces.text_stream) == whole


def tools() -> None:
    tool: Any = {"name": "weather", "description": "The weather of a city.", "input_schema": WEATHER}
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    first = client.messages.create(messages=asked, max_tokens=64, tools=[tool], tool_choice=choice, **options)
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": weather(**call.input)}
    history = [*asked, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    last = client.messages.create(messages=history, max_tokens=8, tools=[tool], tool_choice={"type": "none"}, **options)
    assert last.content[0].text


def structured_output() -> None:
    shape: Any = {"format": {"type": "json_schema", "schema": WEATHER}}
    answer = client.messages.create(messages=asked, max_tokens=64, output_config=shape, **options)
    assert json.loads(answer.content[0].text)["city"] in ("Oslo", "Kyoto")


def token_counts() -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=asked)
    answer = client.messages.create(messages=asked, max_tokens=1, **options)
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def errors() -> None:
    try:
        client.messages.create(messages=asked, max_tokens=8, model=MODEL, extra_body={"temperature": -1})
    except anthropic.BadRequestError as error:
        assert "temperature" in error.message
    else:
        raise AssertionError("a temperature of -1 was taken")


if __name__ == "__main__":
    run(
        "anthropic",
        {
            "chat": chat,
            "stream": stream,
            "tools": tools,
            "structured output": structured_output,
            "token counts": token_counts,
            "errors": errors,
        },
    )
