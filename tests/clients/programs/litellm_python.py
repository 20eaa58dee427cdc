"""LiteLLM, as a library: providers ``hosted_vllm``, ``openai`` and ``anthropic``."""

import json
from typing import Any

import litellm
from report import MODEL, QUESTION, URL, WEATHER, run, weather

litellm.telemetry = False
asked: list[Any] = [{"role": "user", "content": QUESTION}]
options: Any = {
    "model": f"hosted_vllm/{MODEL}",
    "api_base": f"{URL}/v1",
    "api_key": "none",
    "temperature": 0,
    "max_tokens": 32,
    "num_retries": 0,
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}


def chat() -> None:
    answer = litellm.completion(messages=asked, **options, extra_body={"top_k": 3, "cache_prompt": True})
    assert answer.choices[0].message.content


def stream() -> None:
    whole = litellm.completion(messages=asked, **options).choices[0].message.content
    pieces = litellm.completion(messages=asked, stream=True, **options)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole


def tools() -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    first = litellm.completion(messages=asked, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False, **options)
    message = first.choices[0].message
    (call,) = message.tool_calls
    result = weather(**json.loads(call.function.arguments))
    history = [*asked, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": result}]
    assert litellm.completion(messages=history, **options).choices[0].message.content


def structured_output() -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER, "strict": True}}
    answer = litellm.completion(messages=asked, response_format=shape, **options)
    assert json.loads(answer.choices[0].message.content)["city"] in ("Oslo", "Kyoto")


def messages() -> None:
    changed = {**options, "model": f"anthropic/{MODEL}", "api_base": URL}
    assert litellm.completion(messages=asked, **changed).choices[0].message.content


def embeddings() -> None:
    found = litellm.embedding(
        model=f"hosted_vllm/{MODEL}", api_base=f"{URL}/v1", api_key="none", input=["The sky is blue.", "A train."]
    )
    assert len(found.data) == 2


def errors() -> None:
    try:
        litellm.completion(messages=asked, **{**options, "temperature": -1})
    except litellm.BadRequestError as error:
        assert "temperature" in str(error)
    else:
        raise AssertionError("a temperature of -1 was taken")


if __name__ == "__main__":
    run(
        "litellm",
        {
            "chat": chat,
            "stream": stream,
            "tools": tools,
            "structured output": structured_output,
            "messages": messages,
            "embeddings": embeddings,
            "errors": errors,
        },
    )
