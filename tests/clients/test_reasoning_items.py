"""Reasoning at ``/v1/responses`` and ``/v1/messages``: items and blocks, streamed as typed clients read them."""

from typing import Any

import httpx
import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import RawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.api.conftest import Memory
from tests.api.scripted import MODEL
from tests.api.test_reasoning import CALL, thinking
from tests.api.thinking_model import OPENED, SWITCHED, written

RESPONSE_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
MESSAGE_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
THOUGHT = "<think>\nThe user greets.\n</think>\n\nHello!"
OPENAI_TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
ANTHROPIC_TOOL = {"name": "f", "input_schema": {"type": "object"}}
USER = {"role": "user", "content": "hi"}
THINK = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


async def post(memory: Memory, path: str, **fields: Any) -> httpx.Response:
    own = {"input": [USER]} if path == "/v1/responses" else {"messages": [USER], "max_tokens": 300}
    response = await memory.http.post(path, json={"model": MODEL, **own, **fields})
    assert response.status_code == 200, response.text
    return response


def data(response: httpx.Response) -> list[str]:
    return [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]


def prompt_of(memory: Memory) -> str:
    return memory.engine.tokenizer.decode(memory.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


class TestResponses:
    async def test_a_reasoning_item_comes_before_the_message_and_the_calls(self) -> None:
        async with thinking(SWITCHED, THOUGHT + CALL) as memory:
            body = (await post(memory, "/v1/responses", tools=[OPENAI_TOOL])).json()
            streamed = data(await post(memory, "/v1/responses", tools=[OPENAI_TOOL], stream=True))
        answer = Response.model_validate(body)
        thought, message, call = answer.output
        assert thought.type == "reasoning"
        assert thought.summary == []
        assert thought.content is not None
        assert [part.text for part in thought.content] == ["The user greets."]
        assert (message.type, answer.output_text, call.type) == ("message", "Hello!", "function_call")
        assert answer.usage is not None
        assert answer.usage.output_tokens_details.reasoning_tokens == len(written(THOUGHT)) - len("Hello!") - 1

        events = [RESPONSE_EVENT.validate_json(each, strict=True) for each in streamed]
        kinds = [event.type for event in events if event.type != "response.reasoning_text.delta"]
        assert kinds[2:8] == [
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
        ]
        deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
        assert "".join(deltas) == "The user greets."
        assert len(deltas) > 1
        last = events[-1].response
        assert last.usage == answer.usage
        own = {"id", "call_id"}
        assert [item.model_dump(exclude=own) for item in last.output] == [
            item.model_dump(exclude=own) for item in answer.output
        ]

    async def test_cut_while_it_thinks(self) -> None:
        async with thinking(OPENED, "So on and on") as memory:
            body = (await post(memory, "/v1/responses", max_output_tokens=5)).json()
        (item,) = body["output"]
        assert (item["type"], item["status"], item["content"][0]["text"]) == ("reasoning", "incomplete", "So on")
        assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})

    @pytest.mark.parametrize(("effort", "thinks"), [("none", False), ("high", True), (None, True)])
    async def test_effort(self, effort: str | None, thinks: bool) -> None:
        async with thinking(SWITCHED, "Hi") as memory:
            response = await post(memory, "/v1/responses", reasoning={"effort": effort})
            assert prompt_of(memory).endswith("assistant\n" if thinks else "</think>\n\n")
            assert response.json()["reasoning"]["effort"] == effort
            assert "x-ekiden-ignored-fields" not in response.headers
            await post(memory, "/v1/responses", chat_template_kwargs={"enable_thinking": False})
            assert prompt_of(memory).endswith("</think>\n\n")

    async def test_earlier_reasoning_belongs_to_the_answer_after_it(self) -> None:
        items = [
            USER,
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Look."}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "5"},
            {"type": "reasoning", "id": "s", "summary": [{"type": "summary_text", "text": "Say."}]},
            {"type": "message", "role": "assistant", "content": "It is 5."},
            {"type": "reasoning", "id": "t", "summary": [], "encrypted_content": "x"},
            USER,
        ]
        async with thinking(SWITCHED, "Hi") as memory:
            response = await post(memory, "/v1/responses", input=items)
            assert "x-ekiden-ignored-fields" not in response.headers
            assert "assistant\n<think>\nLook.\n</think>\n\n<tool_call>" in prompt_of(memory)
            assert "assistant\n<think>\nSay.\n</think>\n\nIt is 5.<|im_end|>" in prompt_of(memory)
            assert prompt_of(memory).count("<think>") == 2


class TestMessages:
    async def test_a_thinking_block_comes_before_the_text_and_the_calls(self) -> None:
        async with thinking(SWITCHED, THOUGHT + CALL) as memory:
            body = (await post(memory, "/v1/messages", tools=[ANTHROPIC_TOOL], **THINK)).json()
            streamed = data(await post(memory, "/v1/messages", tools=[ANTHROPIC_TOOL], stream=True, **THINK))
        content: Any = AnthropicMessage.model_validate(body).content
        thought, text, call = content
        assert (thought.type, text.type, call.type) == ("thinking", "text", "tool_use")
        assert thought.thinking == "The user greets."
        assert len(thought.signature) > 20
        assert text.text == "Hello!"

        blocks: list[dict[str, Any]] = []
        for event in [MESSAGE_EVENT.validate_json(each, strict=True) for each in streamed]:
            if event.type == "content_block_start":
                blocks.append({"type": event.content_block.type, "deltas": []})
            elif event.type == "content_block_delta":
                assert event.index == len(blocks) - 1
                blocks[-1]["deltas"].append(event.delta)
        assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
        *thoughts, signature = blocks[0]["deltas"]
        assert "".join(delta.thinking for delta in thoughts) == thought.thinking
        assert signature.signature == thought.signature
        assert len(thoughts) > 1

    @pytest.mark.parametrize(
        ("fields", "thinks", "shown"),
        [
            ({}, False, False),
            ({"thinking": {"type": "disabled"}}, False, False),
            ({"thinking": {"type": "adaptive"}}, True, True),
            ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, True, True),
            ({"thinking": {"type": "adaptive", "display": "omitted"}}, True, False),
        ],
    )
    async def test_a_model_thinks_when_it_is_asked_to(self, fields: dict[str, Any], thinks: bool, shown: bool) -> None:
        async with thinking(SWITCHED, "<think>so</think>Hi" if thinks else "Hi") as memory:
            body = (await post(memory, "/v1/messages", **fields)).json()
            assert [block["type"] for block in body["content"]] == ["thinking"] * shown + ["text"]
            assert prompt_of(memory).endswith("assistant\n" if thinks else "</think>\n\n")

    async def test_a_model_that_always_thinks_shows_it_to_those_who_asked(self) -> None:
        async with thinking(OPENED, "so</think>Hi") as memory:
            silent = await post(memory, "/v1/messages")
            refused = await post(memory, "/v1/messages", thinking={"type": "disabled"})
            asked = await post(memory, "/v1/messages", thinking={"type": "adaptive"})
        assert [block["type"] for block in silent.json()["content"]] == ["text"]
        assert silent.json()["usage"]["output_tokens"] == len(written("so</think>Hi"))
        assert "x-ekiden-ignored-fields" not in silent.headers
        assert refused.headers["x-ekiden-ignored-fields"] == "thinking"
        assert [block["type"] for block in asked.json()["content"]] == ["thinking", "text"]

    @pytest.mark.parametrize(
        ("template", "beginning", "end", "reasoning"),
        [
            (SWITCHED, "It is", "assistant\nIt is", None),
            (OPENED, "It is", "assistant\n<think>\n\n</think>\n\nIt is", None),
            (SWITCHED, "<think>Hm", "assistant\n<think>Hm", "so"),
            (SWITCHED, "<think>Hm</think>It", "assistant\n<think>Hm</think>It", None),
        ],
    )
    async def test_an_answer_that_the_client_has_begun(
        self, template: str, beginning: str, end: str, reasoning: str | None
    ) -> None:
        script = "so</think>Hi" if reasoning else " 5."
        async with thinking(template, script) as memory:
            messages = [USER, {"role": "assistant", "content": beginning}]
            response = await post(memory, "/v1/messages", messages=messages, thinking={"type": "adaptive"})
            assert prompt_of(memory).endswith(end)
        content = response.json()["content"]
        assert [block.get("thinking") for block in content if block["type"] == "thinking"] == [reasoning] * bool(
            reasoning
        )
        assert content[-1]["text"] == ("Hi" if reasoning else " 5.")

    async def test_earlier_thinking_reaches_the_template(self) -> None:
        earlier = {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Look.", "signature": "x"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "c", "name": "f", "input": {}},
            ],
        }
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "5"}]}
        async with thinking(SWITCHED, "Hi") as memory:
            response = await post(memory, "/v1/messages", messages=[USER, earlier, result])
            assert "assistant\n<think>\nLook.\n</think>\n\nLet me see.<tool_call>" in prompt_of(memory)
            assert "x-ekiden-ignored-fields" not in response.headers

    async def test_effort_is_a_variable_of_templates_that_read_it(self) -> None:
        async with thinking("{{ reasoning_effort }}|{{ messages[0].content }}", "Hi") as memory:
            response = await post(memory, "/v1/messages", output_config={"effort": "low"})
            assert prompt_of(memory) == "low|hi"
            assert "x-ekiden-ignored-fields" not in response.headers
