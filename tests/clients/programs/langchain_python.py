"""LangChain's ``ChatOpenAI`` and ``OpenAIEmbeddings``."""

from typing import Any, Literal

import pydantic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from report import MODEL, QUESTION, URL, run
from report import weather as weather_of

chat_model: Any = ChatOpenAI(
    model=MODEL, base_url=f"{URL}/v1", api_key="none", temperature=0, max_retries=0, max_completion_tokens=32
)


@tool
def weather(city: Literal["Oslo", "Kyoto"]) -> str:
    """The weather of a city."""
    return weather_of(city)


class Weather(pydantic.BaseModel):
    city: Literal["Oslo", "Kyoto"]


def chat() -> None:
    assert chat_model.invoke(QUESTION).content


def stream() -> None:
    assert "".join(piece.content for piece in chat_model.stream(QUESTION)) == chat_model.invoke(QUESTION).content


def tools() -> None:
    asked: list[Any] = [HumanMessage(QUESTION)]
    bound = chat_model.bind_tools([weather], tool_choice="weather", strict=True, parallel_tool_calls=False)
    answer = bound.invoke(asked)
    (call,) = answer.tool_calls
    assert chat_model.invoke([*asked, answer, weather.invoke(call)]).content


def structured_output() -> None:
    answer = chat_model.with_structured_output(Weather).invoke(QUESTION)
    assert isinstance(answer, Weather)


def embeddings() -> None:
    texts = ["The sky is blue.", "A train to Kyoto."]
    vectors = OpenAIEmbeddings(
        model=MODEL, base_url=f"{URL}/v1", api_key="none", check_embedding_ctx_length=False
    ).embed_documents(texts)
    assert len(vectors) == 2


if __name__ == "__main__":
    run(
        "langchain-openai",
        {
            "chat": chat,
            "stream": stream,
            "tools": tools,
            "structured output": structured_output,
            "embeddings": embeddings,
        },
    )
