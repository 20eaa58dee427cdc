"""instructor: structured answers by a JSON schema and by a tool, whole and streamed."""

from typing import Any, Literal

import instructor
import openai
import pydantic
from report import MODEL, QUESTION, URL, run

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
asked: list[Any] = [{"role": "user", "content": QUESTION}]
options: Any = {"model": MODEL, "messages": asked, "temperature": 0, "max_tokens": 64, "max_retries": 0}


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: Literal["Oslo", "Kyoto"]


def _answer(mode: instructor.Mode) -> None:
    found = instructor.from_openai(client, mode=mode).create(response_model=Weather, **options)
    assert isinstance(found, Weather)


def structured_output() -> None:
    _answer(instructor.Mode.JSON_SCHEMA)


def tools() -> None:
    _answer(instructor.Mode.TOOLS)


def stream() -> None:
    patched = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    pieces = list(patched.create_partial(response_model=Weather, **options))
    assert pieces[-1].city in ("Oslo", "Kyoto")


if __name__ == "__main__":
    run("instructor", {"structured output": structured_output, "tools": tools, "stream": stream})
