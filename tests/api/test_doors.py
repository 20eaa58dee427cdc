"""The other protocols: what they refuse and how they name it, and that no client's mistake becomes a 500."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ekiden.api.doors import messages, responses
from ekiden.state.sampling_params import GrammarKind
from tests.api.conftest import Memory, assert_error
from tests.api.scripted import MODEL

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SELF = {"$defs": {"q": {"$ref": "#/$defs/q"}}, "type": "object", "properties": {"v": {"$ref": "#/$defs/q"}}}

BAD = {"parameters": {"type": "array"}}
FUNCTION = {"type": "function", "name": "f"}


async def respond(memory: Memory, **fields: Any) -> Any:
    return await memory.http.post("/v1/responses", json={"model": MODEL, "input": "hi", **fields})


async def message(memory: Memory, **fields: Any) -> Any:
    body = {"model": MODEL, "max_tokens": 5, "messages": [USER], **fields}
    return await memory.http.post("/v1/messages", json=body)


def prompt_of(memory: Memory) -> str:
    return memory.engine.tokenizer.decode(memory.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]},
            "input[0].content[0].text",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}]},
            "input[0].output[0].type",
        ),
        ({"input": [{"type": "local_shell_call", "call_id": "c", "action": "ls"}]}, "input[0].action"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "5"}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": SELF}}}, "text.format.schema"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "f", "parameters": SELF}]}, "tools[0].parameters"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "a b"}]}]},
            "tools[0].tools[0].name",
        ),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f", **BAD}]}]},
            "tools[0].tools[0].parameters.type",
        ),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"tools": [FUNCTION, {"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function", "name": "g"}}, None),
        *(({name: "x"}, name) for name, fate in responses.ResponsesRequest.fates.items() if fate.refused),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else None,
)
async def test_wrong_responses_are_named(memory: Memory, fields: dict[str, Any], param: str | None) -> None:
    assert_error(await respond(memory, **fields), 400, param)
    assert memory.engine.requests == []


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "system", "content": [{"type": "image"}]}]}, "messages[1].content[0].type"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f"}]}]},
            "messages[1].content[0].input",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}],
                    }
                ]
            },
            "messages[0].content[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}]},
            "messages[0].content[0].source.type",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "thinking"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"system": 5}, "system"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["a"] * 65}, "stop_sequences"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "f", "input_schema": SELF}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
        ({"output_format": {"type": "json_schema", "schema": SELF}}, "output_format.schema"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        (
            {
                "tools": [{"name": "f", "input_schema": {}}, {"type": "web_search_20250305", "name": "web_search"}],
                "tool_choice": {"type": "tool", "name": "web_search"},
            },
            "'web_search'",
        ),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": {"format": {"type": "json_schema", "schema": SELF}}}, "output_config.format.schema"),
        *(({name: "x"}, name) for name, fate in messages.MessagesRequest.fates.items() if fate.refused),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else None,
)
async def test_wrong_messages_are_named_in_the_protocols_own_shape(
    memory: Memory, fields: dict[str, Any], named: str
) -> None:
    response = await message(memory, **fields)
    assert response.status_code == 400, response.text
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert named in body["error"]["message"]
    assert memory.engine.requests == []


async def test_schemas_bind_the_answers_of_both(memory: Memory) -> None:
    form = {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}}
    assert (await respond(memory, text=form)).status_code == 200
    assert (await respond(memory, text={"format": {"type": "json_object"}})).status_code == 200
    assert (
        await message(memory, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    ).status_code == 200
    schemas = []
    for request in memory.engine.requests:
        assert request.sampling.grammar is not None
        assert request.sampling.grammar.kind is GrammarKind.JSON_SCHEMA
        schemas.append(json.loads(request.sampling.grammar.source))
    assert schemas == [SCHEMA, {"type": "object"}, SCHEMA]


async def test_a_response_says_back_what_was_asked(memory: Memory) -> None:
    tool = {"type": "function", "name": "f"}
    form = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
    response = await respond(
        memory, instructions="x", tools=[tool], text={"format": form}, metadata={"k": "v"}, user="u", tool_choice="none"
    )
    body = response.json()
    assert body["tools"] == [{"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}]
    assert body["text"] == {"format": form}
    assert (body["instructions"], body["metadata"], body["user"], body["tool_choice"]) == ("x", {"k": "v"}, "u", "none")


async def test_null_means_absent_in_both(memory: Memory) -> None:
    names = [name for name in responses.ResponsesRequest.model_fields if name not in ("model", "input")]
    assert (await respond(memory, **dict.fromkeys(names))).status_code == 200
    needed = ("model", "messages", "max_tokens")
    names = [name for name in messages.MessagesRequest.model_fields if name not in needed]
    assert (await message(memory, **dict.fromkeys(names))).status_code == 200
    assert memory.engine.requests[0].prompt_token_ids == memory.engine.requests[1].prompt_token_ids


async def test_both_are_refused_like_chat_when_the_server_is_on_its_way_out(memory: Memory) -> None:
    memory.app.state.doors.generation.flight.draining = True
    assert_error(await respond(memory), 503, code="draining")
    response = await message(memory)
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "overloaded_error"
    assert response.headers["retry-after"]


KEYS = [
    *("type", "role", "content", "text", "name", "input", "id", "call_id", "output", "format", "schema", "tools"),
    *("source", "data", "title", "action", "namespace", "tool_use_id", "definition", "input_schema", "parameters"),
]
WORDS = [
    *(
        "user",
        "assistant",
        "system",
        "message",
        "text",
        "function_call",
        "json_schema",
        "function",
        "custom",
        "namespace",
    ),
    *("custom_tool_call", "local_shell_call", "shell_call_output", "additional_tools", "tool_use", "tool_result"),
    *("document", "search_result", "compaction", "bash_20250124", "tool"),
]
JSON: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.sampled_from(["/v1/responses", "/v1/messages", "/v1/messages/count_tokens"]),
    st.dictionaries(
        st.sampled_from(sorted({*responses.ResponsesRequest.model_fields, *messages.MessagesRequest.model_fields})),
        JSON,
        max_size=4,
    ),
)
async def test_no_body_is_a_fault_of_ours(memory: Memory, path: str, fields: dict[str, Any]) -> None:
    body = {"model": MODEL, **({"input": "x"} if "responses" in path else {"messages": [USER]}), **fields}
    if path == "/v1/messages":
        body.setdefault("max_tokens", 3)
    response = await memory.http.post(path, json=body)
    assert response.status_code in (200, 400, 404), response.text
