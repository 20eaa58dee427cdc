"""Fields of one request with odd values: a 400 that names the place, in words that mean something to the client."""

import json
from typing import Any

import httpx
import msgspec
import pytest

from tests.api.conftest import Memory, assert_error
from tests.api.scripted import MODEL

USER = {"role": "user", "content": "hi"}
DOORS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [USER], "max_tokens": 5},
}
NUMBERS = {
    "/v1/chat/completions": [
        "top_k", "n", "seed", "max_tokens", "max_completion_tokens", "min_tokens", "priority", "top_logprobs",
        "n_predict",
    ],
    "/v1/completions": ["top_k", "n", "best_of", "seed", "max_tokens", "min_tokens", "priority", "logprobs"],
    "/v1/responses": ["top_k", "seed", "max_output_tokens", "priority"],
    "/v1/messages": ["top_k", "max_tokens"],
}  # fmt: skip


@pytest.mark.parametrize("path", DOORS)
async def test_own_03_huge_numbers_are_refused_or_reach_the_engine(memory: Memory, path: str) -> None:
    """The engine is in another process: what is accepted must fit into a message to it."""
    for name in NUMBERS[path]:
        for value in (2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -(2**63), -(2**64)):
            body = {"model": MODEL, **DOORS[path], name: value}
            response = await memory.http.post(path, json=body)
            assert response.status_code in (200, 400), (name, value)
            if response.status_code == 400:
                assert name in response.json()["error"]["message"]
    for request in memory.engine.requests:
        msgspec.msgpack.encode(request)
    response = await memory.http.post(path, json={"model": MODEL, **DOORS[path], "top_k": 2**64})
    assert response.status_code == 400
    assert str(2**31 - 1) in response.json()["error"]["message"], "the bound is told"


HALF = "\\ud800"
"""Half a character, as JSON writes it."""
PLACES: list[tuple[str, str, str]] = [
    ("/v1/chat/completions", '"messages": [{"role": "user", "content": "a%s"}]', "messages[0].content"),
    ("/v1/chat/completions", '"messages": [{"role": "user", "content": "a", "%s": 1}]', "messages[0]."),
    ("/v1/chat/completions", '"messages": [{"role": "user", "content": "a"}], "stop": ["a", "%s"]', "stop[1]"),
    ("/v1/chat/completions", '"messages": [{"role": "user", "content": "a"}], "logit_bias": {"%s": 1}', "logit_bias."),
    ("/v1/chat/completions", '"messages": [{"role": "user", "content": "a"}], "zzz": {"b": ["%s"]}', "zzz.b[0]"),
    ("/v1/completions", '"prompt": "%s"', "prompt"),
    ("/v1/completions", '"prompt": ["a", "%s"]', "prompt[1]"),
    ("/v1/responses", '"input": [{"role": "user", "content": "%s"}]', "input[0].content"),
    ("/tokenize", '"prompt": "%s"', "prompt"),
]


def posted(memory: Memory, path: str, body: str) -> Any:
    content = f'{{"model": "{MODEL}", {body}}}'
    return memory.http.post(path, content=content, headers={"content-type": "application/json"})


@pytest.mark.parametrize(("path", "body", "place"), PLACES)
async def test_own_04_half_characters_are_refused_by_their_place(
    memory: Memory, path: str, body: str, place: str
) -> None:
    for half in (HALF, "\\uDFFF", "\\ud83dx", "x\\ude00\\ud83d"):
        response = await posted(memory, path, body.replace("%s", half))
        assert "lone surrogate" in assert_error(response, 400)
        assert response.json()["error"]["param"].startswith(place)
    assert (await posted(memory, path, body.replace("%s", "\\ud83d\\ude00"))).status_code in (200, 400)


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}


def calls(arguments: str) -> list[tuple[str, dict[str, Any], str]]:
    """A call in the history of each door whose arguments are JSON in a text."""
    function = {"name": "f", "arguments": arguments}
    item = {"type": "function_call", "call_id": "c", **function}
    return [
        (
            "/v1/chat/completions",
            {"messages": [USER, {"role": "assistant", "tool_calls": [{**CALL, "function": function}]}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        ("/v1/responses", {"input": [{"role": "user", "content": "hi"}, item]}, "input[1].arguments"),
    ]


@pytest.mark.parametrize("half", [HALF, "\\uDC00", "x\\ud83d!"])
async def test_own_04_half_characters_in_the_arguments_of_an_earlier_call(memory: Memory, half: str) -> None:
    for arguments in (f'{{"a": "{half}"}}', f'{{"{half}": 1}}', f'{{"a": [{{"b": "{half}"}}]}}'):
        for path, body, place in calls(arguments):
            response = await memory.http.post(path, json={"model": MODEL, **body})
            assert "lone surrogate" in assert_error(response, 400, place)
    # Whole characters, escaped backslashes and text that is no JSON are none of it.
    for arguments in ('{"a": "\\ud83d\\ude00"}', '{"a": "\\\\ud800"}', f"not {half} JSON"):
        for path, body, _ in calls(arguments):
            assert (await memory.http.post(path, json={"model": MODEL, **body})).status_code == 200


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"properties": {"a": {"type": "strin"}}}, "properties.a"),
    (
        {"properties": {"a": {"type": "object", "properties": {"b": {"type": "string", "pattern": "("}}}}},
        "properties.a.properties.b",
    ),
    ({"properties": {"a": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/nope"}]}}}, "properties.a.anyOf[1]"),
    ({"properties": {"a": {"type": "array", "items": 5}}}, "properties.a.items"),
    ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "strin"}}}, "properties.a"),
    ({"required": "a"}, ""),
    ({"properties": [1]}, ""),
]


def told(response: httpx.Response, field: str) -> str:
    message = assert_error(response, 400, field, "invalid_grammar")
    for internal in ("arguments0", "%json", "x-guidance", "lenient", "|", "call1"):
        assert internal not in message
    return message


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("schema", "at"), FAULTS, ids=[json.dumps(schema)[:60] for schema, _ in FAULTS])
async def test_own_28_a_bad_tool_schema_names_function_and_field(
    memory: Memory, schema: dict[str, Any], at: str, strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ekiden.sampling.schema_faults.SECONDS", 60.0)  # how far the looking gets in its time
    good = {"type": "function", "function": {"name": "good", "parameters": {"type": "object"}}}
    parameters = {"type": "object", **schema}
    bad = {"type": "function", "function": {"name": "bad", "strict": strict, "parameters": parameters}}
    message = told(await memory.chat(tools=[good, bad], tool_choice="required"), "tools[1].function.parameters")
    assert "'bad'" in message
    assert f"(at {at})" in message if at else "(at" not in message
    form = {"type": "json_schema", "json_schema": {"name": "a", "strict": strict, "schema": parameters}}
    message = told(await memory.chat(response_format=form), "response_format.json_schema.schema")
    assert f"(at {at})" in message if at else "(at" not in message


async def test_own_28_a_grammar_of_the_clients_own_is_told_by_its_lines(memory: Memory) -> None:
    message = told(await memory.chat(guided_grammar="start: b\nb: nothing"), "guided_grammar")
    assert "line 2" in message
    assert "at 3(" not in message
