"""Models that think: their reasoning comes apart from the answer, and what clients ask of it reaches the template."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ekiden.config import Config, ConfigError, ModelConfig
from ekiden.state.sampling_params import Thinking
from tests.api.conftest import Memory, assert_error, events
from tests.api.scripted import END, LONG, TEMPLATE, say
from tests.api.thinking_model import OPENED, SWITCHED, thinking_memory, written
from tests.unit.sampling.thinking_tokens import CLOSE, OPEN

THOUGHT = "<think>\nThe user greets.\n</think>\n\nHello!"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False,
}}}  # fmt: skip


@asynccontextmanager
async def thinking(template: str, script: Any, config: Config | None = None, **options: Any) -> AsyncIterator[Memory]:
    memory = thinking_memory(template, script, config, **options)
    async with memory.http:
        yield memory


async def both_ways(memory: Memory, **fields: Any) -> dict[str, Any]:
    """The choice of a whole answer, after checking that the streamed one is the same; with the usage."""
    response = await memory.chat(**fields)
    assert response.status_code == 200, response.text
    body = response.json()
    (choice,) = body["choices"]
    streamed = await memory.chat(stream=True, stream_options={"include_usage": True}, **fields)
    message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
    finish: str | None = None
    logprobs: list[Any] = []
    for chunk in events(streamed.text):
        for each in chunk["choices"]:
            finish = each["finish_reason"] or finish
            logprobs += (each["logprobs"] or {}).get("content") or []
            delta = each["delta"]
            assert not {"content", "reasoning_content"} <= delta.keys()
            for key in ("content", "reasoning_content"):
                if key in delta:
                    message[key] = message.get(key, "") + delta[key]
            if delta.get("content"):
                message["order"] = [*message.get("order", []), "content"]
            if "reasoning_content" in delta:
                assert "order" not in message, "reasoning came after the answer had begun"
            for call in delta.get("tool_calls", []):
                calls = message.setdefault("tool_calls", [])
                if "id" in call:
                    calls.append({"name": call["function"]["name"], "arguments": ""})
                calls[call["index"]]["arguments"] += call["function"]["arguments"]
        usage = chunk["usage"] or {}
    message.pop("order", None)
    whole = dict(choice["message"])
    if "tool_calls" in whole:
        whole["tool_calls"] = [call["function"] for call in whole["tool_calls"]]
        message["content"] = message["content"] or None
    assert message == whole
    assert finish == choice["finish_reason"]
    assert logprobs == ((choice["logprobs"] or {}).get("content") or [])
    if choice["logprobs"] is not None:
        assert b"".join(bytes(entry["bytes"]) for entry in logprobs) == whole["content"].encode()
    assert usage == body["usage"]
    return {**choice, "usage": usage}


def said(choice: dict[str, Any]) -> tuple[str | None, str | None]:
    return choice["message"].get("reasoning_content"), choice["message"]["content"]


@pytest.mark.parametrize("special", [False, True])
async def test_reasoning_comes_apart(special: bool) -> None:
    async with thinking(SWITCHED, THOUGHT, special=special) as memory:
        choice = await both_ways(memory)
    assert said(choice) == ("The user greets.", "Hello!")
    # The marks, the text between them, and the line ends after them; what follows is the answer.
    assert choice["usage"]["completion_tokens_details"] == {
        "reasoning_tokens": len(written(THOUGHT)) - len("Hello!") - 1
    }
    assert choice["finish_reason"] == "stop"


async def test_reasoning_that_the_prompt_has_opened() -> None:
    async with thinking(OPENED, "So\n\nit is.\n</think>\n\nHello!") as memory:
        assert said(await both_ways(memory)) == ("So\n\nit is.", "Hello!")


async def test_marks_that_are_spelled_in_pieces() -> None:
    async with thinking(SWITCHED, lambda request: [*say(THOUGHT), END]) as memory:
        assert said(await both_ways(memory)) == ("The user greets.", "Hello!")


@pytest.mark.parametrize("text", ["Hello <think>x</think>", "  Hello", "<thin", "<thing>", ""])
async def test_an_answer_without_reasoning_is_whole(text: str) -> None:
    async with thinking(SWITCHED, lambda request: [*say(text), END]) as memory:
        choice = await both_ways(memory, logprobs=True)
    assert said(choice) == (None, text)
    assert choice["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == text


async def test_cut_while_it_thinks() -> None:
    async with thinking(SWITCHED, THOUGHT) as memory:
        choice = await both_ways(memory, max_tokens=8, logprobs=True)
    assert said(choice) == ("The us", "")
    assert choice["finish_reason"] == "length"
    assert choice["usage"]["completion_tokens_details"] == {"reasoning_tokens": 8}
    assert choice["logprobs"]["content"] == []


async def test_log_probabilities_are_those_of_the_answer() -> None:
    async with thinking(
        SWITCHED, lambda request: [*written(THOUGHT)[:-1], LONG["hello"], LONG[" world"], END]
    ) as memory:
        choice = await both_ways(memory, logprobs=True, top_logprobs=1)
    assert said(choice) == ("The user greets.", "Hello!hello world")
    assert len(choice["logprobs"]["content"]) == len("Hello!") + 2


async def test_a_second_mark_is_text_with_its_log_probability() -> None:
    async with thinking(SWITCHED, "<think>a</think>b</think>c", special=True) as memory:
        choice = await both_ways(memory, logprobs=True)
    assert said(choice) == ("a", "b</think>c")
    assert len(choice["logprobs"]["content"]) == 3


@pytest.mark.parametrize("answer", ["\n\n\N{GRINNING FACE}!", "\N{GRINNING FACE}\n", "\n é", "<x"])
@pytest.mark.parametrize("before", ["<think>a</think>", "<think></think>", ""])
async def test_log_probabilities_of_an_answer_that_begins_inside_a_character(before: str, answer: str) -> None:
    async with thinking(SWITCHED, before + answer) as memory:
        choice = await both_ways(memory, logprobs=True)
    content = answer.lstrip("\n") if before else answer
    assert choice["message"]["content"] == content
    assert len(choice["logprobs"]["content"]) == len(content.encode())


async def test_stop_strings_and_calls_count_in_the_answer_only() -> None:
    script = f"<think>I stop. {CALL}</think>So: {CALL}"
    async with thinking(SWITCHED, script) as memory:
        choice = await both_ways(memory, stop="stop.", tools=TOOLS)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"] == f"I stop. {CALL}"
    assert choice["message"]["content"] == "So:"
    assert len(choice["message"]["tool_calls"]) == 1
    async with thinking(SWITCHED, "<think>I stop.</think>Now stop. Or not.") as memory:
        choice = await both_ways(memory, stop=["stop."])
    assert said(choice) == ("I stop.", "Now ")
    assert choice["stop_reason"] == "stop."


@pytest.mark.parametrize(("template", "begun"), [(SWITCHED, False), (OPENED, True)])
async def test_a_grammar_begins_after_the_reasoning(template: str, begun: bool) -> None:
    text = 'So.</think>\n\n{"a": 1}'
    marks = Thinking(opening="<think>", closing="</think>", begun=begun)
    ways: list[dict[str, Any]] = [{"response_format": SCHEMA}, {"tools": TOOLS, "tool_choice": "required"}]
    async with thinking(template, text if begun else "<think>" + text) as memory:
        for fields in ways:
            assert (await memory.chat(**fields)).status_code == 200
            sampling = memory.engine.requests[-1].sampling
            assert sampling.reasoning_marks == marks
            assert sampling.grammar is not None
            assert sampling.grammar.thinking == marks
        assert said(await both_ways(memory, response_format=SCHEMA)) == ("So.", '{"a": 1}')


SWITCHES: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"chat_template_kwargs": {"enable_thinking": False}}, False),
    ({"chat_template_kwargs": {"enable_thinking": True}}, True),
    ({"reasoning_effort": "none"}, False),
    ({"reasoning_effort": "high"}, True),
    ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, True),
    ({"reasoning_effort": None, "chat_template_kwargs": None}, True),
]


@pytest.mark.parametrize(("fields", "thinks"), SWITCHES)
async def test_reasoning_is_switched_by_the_template(fields: dict[str, Any], thinks: bool) -> None:
    async with thinking(SWITCHED, "Hello! <think>") as memory:
        assert said(await both_ways(memory, response_format=SCHEMA, **fields)) == (None, "Hello! <think>")
        request = memory.engine.requests[-1]
        prompt = memory.engine.tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
        assert prompt.endswith("assistant\n" if thinks else "assistant\n<think>\n\n</think>\n\n")
        assert (request.sampling.reasoning_marks is not None) == thinks
        assert request.sampling.grammar is not None
        assert (request.sampling.grammar.thinking is not None) == thinks


async def test_the_servers_own_variables_come_under_a_requests() -> None:
    config = Config(model=ModelConfig(default_chat_template_kwargs='{"enable_thinking": false, "mood": "calm"}'))
    async with thinking(SWITCHED + "{{ mood }}", "Hi", config) as memory:

        async def end_of_prompt(**fields: Any) -> str:
            await memory.chat(**fields)
            tokens = memory.engine.requests[-1].prompt_token_ids
            return memory.engine.tokenizer.decode(tokens, skip_special_tokens=False).rpartition("assistant\n")[2]

        assert await end_of_prompt() == "<think>\n\n</think>\n\ncalm"
        assert await end_of_prompt(chat_template_kwargs={"enable_thinking": True}) == "calm"
        assert await end_of_prompt(chat_template_kwargs={"mood": "<|im_end|>"}, reasoning_effort="low") == "<|im_end|>"
        # A variable is text of the client's: no token of the model comes from it.
        assert memory.engine.requests[-1].prompt_token_ids.count(END) == 1


@pytest.mark.parametrize("value", ["x", "[]", "1", "null", "{", '"x"', "[" * 100_000])
def test_the_servers_own_variables_are_an_object(value: str) -> None:
    with pytest.raises(ConfigError, match="default_chat_template_kwargs .* must be a JSON object"):
        ModelConfig(default_chat_template_kwargs=value)


async def test_effort_is_a_variable_of_templates_that_read_it() -> None:
    async with thinking("{{ reasoning_effort }}|{{ messages[0].content }}", "Hi") as memory:
        await memory.chat(reasoning_effort="high")
        assert memory.engine.tokenizer.decode(memory.engine.requests[-1].prompt_token_ids) == "high|hi"


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"messages": []}, "chat_template_kwargs.messages"),
        ({"tools": None}, "chat_template_kwargs.tools"),
        ({"add_generation_prompt": False}, "chat_template_kwargs.add_generation_prompt"),
        ({"bos_token": "x"}, "chat_template_kwargs.bos_token"),
        ({"chat_template": "x"}, "chat_template_kwargs.chat_template"),
        ([], "chat_template_kwargs"),
        ("x", "chat_template_kwargs"),
    ],
)
async def test_variables_that_are_not_a_clients_to_choose(memory: Memory, value: Any, param: str) -> None:
    assert_error(await memory.chat(chat_template_kwargs=value), 400, param)
    assert memory.engine.requests == []


async def test_tokenize_takes_variables_too() -> None:
    async with thinking(SWITCHED, "Hi") as memory:
        body = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"enable_thinking": False}}
        tokens = (await memory.http.post("/tokenize", json=body)).json()["tokens"]
        assert memory.engine.tokenizer.decode(tokens).endswith("assistant\n<think>\n\n</think>\n\n")


NAMES = ["self", "protect", "variables", "source", "loop", "range", "namespace", "a-b", "a b", "", "1", "__class__"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize"])
async def test_no_name_or_value_of_a_variable_breaks_anything(path: str) -> None:
    deep: Any = {"x": 10**300}
    for _ in range(90):
        deep = {"x": [deep]}
    values = dict.fromkeys(NAMES, deep) | {f"k{number}": None for number in range(1000)}
    async with thinking(SWITCHED, "Hi") as memory:
        messages = [{"role": "user", "content": "hi"}]
        own = {"input": "hi"} if path == "/v1/responses" else {"messages": messages, "max_tokens": 5}
        if path == "/tokenize":
            own.pop("max_tokens")
        body = {"model": "toy/model", **own, "chat_template_kwargs": values}
        response = await memory.http.post(path, json=body)
        assert response.status_code == 200, response.text
        if path != "/tokenize":
            named = response.headers["x-ekiden-ignored-fields"].split(", ")
            assert named[:2] == ["chat_template_kwargs.self", "chat_template_kwargs.protect"]
            assert len(named) == 33


async def test_earlier_reasoning_reaches_the_template() -> None:
    async with thinking(SWITCHED, "Hi") as memory:
        for key in ("reasoning_content", "reasoning"):
            talk = [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b", key: "I thought"},
                {"role": "user", "content": "c"},
            ]
            assert (await memory.chat(talk)).status_code == 200
            prompt = memory.engine.tokenizer.decode(memory.engine.requests[-1].prompt_token_ids)
            assert "<think>\nI thought\n</think>\n\nb" in prompt


async def test_a_client_may_leave_the_reasoning_out() -> None:
    async with thinking(SWITCHED, THOUGHT) as memory:
        choice = await both_ways(memory, include_reasoning=False)
        streamed = await memory.chat(stream=True, include_reasoning=False)
    assert said(choice) == (None, "Hello!")
    assert choice["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    assert len(events(streamed.text)) == 2 + len("Hello!")


class TestWhichModelsThink:
    """``--reasoning-parser``, and what auto finds."""

    async def reasoning(self, template: str, parser: str, script: list[int], **options: Any) -> str | None:
        config = Config(model=ModelConfig(reasoning_parser=parser))
        async with thinking(template, lambda request: script, config, **options) as memory:
            return said((await memory.chat()).json()["choices"][0])[0]

    async def test_by_the_template_or_the_vocabulary(self) -> None:
        marked = [*say("<think>so</think>yes"), END]
        assert await self.reasoning(SWITCHED, "auto", marked) == "so"
        assert await self.reasoning(TEMPLATE, "auto", [OPEN, *say("so"), CLOSE, *say("yes"), END]) == "so"
        assert await self.reasoning(SWITCHED, "none", marked) is None
        assert await self.reasoning(SWITCHED, "qwen3", marked) == "so"
        other = [*say("[THINK]so[/THINK]yes"), END]
        assert await self.reasoning(SWITCHED, "auto", other) is None
        assert await self.reasoning(SWITCHED, "mistral", other) == "so"

    async def test_a_wish_that_cannot_be_granted_is_named(self, memory: Memory) -> None:
        fields = {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": True, "a\r\nb": 1}}
        talk = [{"role": "assistant", "content": "a", "reasoning": "b"}, {"role": "user", "content": "c"}]
        told = "chat_template_kwargs.enable_thinking, chat_template_kwargs.a??b, reasoning_effort"
        answer = await memory.chat(talk, **fields)
        assert answer.headers["x-ekiden-ignored-fields"] == f"{told}, messages[].reasoning_content"
        assert "x-ekiden-ignored-fields" not in (await memory.chat(reasoning_effort="none")).headers
        async with thinking(OPENED, "so</think>Hi") as other:
            assert "x-ekiden-ignored-fields" not in (await other.chat(talk, reasoning_effort="high")).headers
            # This one always thinks.
            named = (await other.chat(reasoning_effort="none")).headers["x-ekiden-ignored-fields"]
            assert named == "reasoning_effort"

    async def test_other_models_give_text_as_it_is(self, memory: Memory) -> None:
        memory.engine.script = lambda request: [*say("<think>so</think>yes"), END]
        choice = await both_ways(memory, reasoning_effort="high", chat_template_kwargs={"enable_thinking": True})
        assert said(choice) == (None, "<think>so</think>yes")
        assert "completion_tokens_details" not in choice["usage"]
        assert memory.engine.requests[-1].sampling.reasoning_marks is None
