"""DSPy: a prediction with typed fields, and its agent at the server whose model calls tools."""

from typing import Any

import dspy
from report import AGENT_MODEL, AGENT_URL, MODEL, QUESTION, URL, run

options: Any = {"api_key": "none", "temperature": 0.0, "cache": False, "num_retries": 0}
model = dspy.LM(f"openai/{MODEL}", api_base=f"{URL}/v1", max_tokens=64, **options)


def chat() -> None:
    assert model(QUESTION)[0]


class Weather(dspy.Signature):
    """Answer the question."""

    question: str = dspy.InputField()
    warm: bool = dspy.OutputField()


def structured_output() -> None:
    with dspy.context(lm=model, adapter=dspy.JSONAdapter()):
        assert isinstance(dspy.Predict(Weather)(question=QUESTION).warm, bool)


def tools() -> None:
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"{city}: 21 degrees"

    agent = dspy.LM(f"openai/{AGENT_MODEL}", api_base=f"{AGENT_URL}/v1", max_tokens=256, **options)
    schema = dspy.Tool(weather).format_as_litellm_function_call()
    asked: list[Any] = [{"role": "user", "content": "How is the weather in Oslo?"}]
    (first,) = agent(messages=asked, tools=[schema])
    (call,) = first["tool_calls"]
    asked += [
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": weather("Oslo")},
    ]
    (last,) = agent(messages=asked, tools=[schema])
    assert "21 degrees" in (last if isinstance(last, str) else last["text"])


if __name__ == "__main__":
    run("dspy", {"chat": chat, "structured output": structured_output, "tools": tools})
