"""``response_format`` and the ``guided_*`` extensions: what reaches the engine, and what is refused at the door."""

import json
from typing import Any

import pytest

from ekiden.state.sampling_params import Grammar, GrammarKind
from tests.api.conftest import Memory, assert_error

COLOURS = {"type": "object", "properties": {"k": {"enum": ["red", "green"]}}, "required": ["k"]}


def json_schema(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, **fields}}


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"response_format": {"type": "json_object"}}, GrammarKind.JSON_SCHEMA, {"type": "object"}),
        ({"response_format": json_schema(COLOURS, strict=True)}, GrammarKind.JSON_SCHEMA, COLOURS),
        ({"response_format": json_schema(COLOURS)}, GrammarKind.LENIENT_JSON_SCHEMA, COLOURS),
        ({"response_format": json_schema(None, strict=True)}, GrammarKind.JSON_SCHEMA, {"type": "object"}),
        ({"guided_json": COLOURS}, GrammarKind.JSON_SCHEMA, COLOURS),
        ({"guided_json": json.dumps(COLOURS)}, GrammarKind.JSON_SCHEMA, COLOURS),
        ({"guided_regex": "[ab]+"}, GrammarKind.REGEX, "[ab]+"),
        ({"guided_choice": ["yes", 'a "b"']}, GrammarKind.LARK, 'start: "yes" | "a \\"b\\""'),
        ({"guided_grammar": 'start: "a"+'}, GrammarKind.LARK, 'start: "a"+'),
        ({"guided_grammar": 'root ::= "a"+'}, GrammarKind.GBNF, 'root ::= "a"+'),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
@pytest.mark.parametrize("route", ["chat", "complete"])
async def test_the_engine_gets_the_grammar(
    memory: Memory, route: str, fields: dict[str, Any], kind: GrammarKind, source: Any
) -> None:
    response = await (memory.chat(**fields) if route == "chat" else memory.complete(**fields))
    assert response.status_code == 200, response.text
    grammar = memory.engine.requests[0].sampling.grammar
    assert grammar is not None
    assert grammar.kind is kind
    assert (json.loads(grammar.source) if isinstance(source, dict) else grammar.source) == source


@pytest.mark.parametrize("form", [None, {"type": "text"}])
async def test_plain_text_has_no_grammar(memory: Memory, form: Any) -> None:
    await memory.chat(response_format=form, guided_regex=None)
    assert memory.engine.requests[0].sampling.grammar is None


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"properties": {"a": value}}
    return value


SELF = {"$defs": {"q": {"$ref": "#/$defs/q"}}, "type": "object", "properties": {"v": {"$ref": "#/$defs/q"}}}
PAIR = {
    "$defs": {"q": {"$ref": "#/$defs/r"}, "r": {"$ref": "#/$defs/q"}},
    "type": "object",
    "properties": {"v": {"$ref": "#/$defs/q"}},
}


@pytest.mark.parametrize(
    "schema",
    [
        SELF,
        PAIR,
        nested(40),
        {"enum": [f"value {i}" for i in range(10_000)]},
        {"type": "string", "pattern": "(" * 2000 + "a" + ")" * 2000},
        {"type": "integer", "multipleOf": 999_983},
        {"enum": []},
        {"type": "integer", "minimum": 2, "maximum": 1},
        {"$ref": "https://example.com/schema"},
        {"type": "object", "properties": {f"p{i}": {} for i in range(5000)}},
    ],
    ids=["self", "pair", "deep", "enum", "groups", "multiple", "none", "range", "remote", "wide"],
)
async def test_schemas_that_cannot_work_are_refused(memory: Memory, schema: dict[str, Any]) -> None:
    for _ in range(2):
        response = await memory.chat(response_format=json_schema(schema, strict=True))
        assert_error(response, 400, "response_format.json_schema.schema", "invalid_grammar")
        assert len(response.content) < 1000
    assert memory.engine.requests == []
    assert (await memory.http.get("/health")).status_code == 200


async def test_a_schema_nested_2000_deep_is_no_crash(memory: Memory) -> None:
    deep = '{"properties":{"a":' * 2000 + "{}" + "}}" * 2000
    body = (
        '{"model":"toy/model","messages":[{"role":"user","content":"hi"}],'
        '"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":' + deep + "}}}"
    )
    response = await memory.http.post(
        "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert_error(response, 400)
    assert (await memory.http.get("/health")).status_code == 200


async def test_a_recursive_tree_and_huge_bounds_are_legal(memory: Memory) -> None:
    tree = {
        "$defs": {"n": {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}},
        "$ref": "#/$defs/n",
    }
    for schema in (tree, {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}):
        assert (await memory.chat(response_format=json_schema(schema, strict=True))).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object", "json_schema": {"name": "a"}}}, "response_format.json_schema"),
        ({"response_format": json_schema("x")}, "response_format.json_schema.schema"),
        ({"response_format": json_schema(COLOURS, strict="yes")}, "response_format.json_schema.strict"),
        ({"response_format": json_schema(COLOURS, zzz=1)}, "response_format.json_schema.zzz"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
            "response_format.json_schema.name",
        ),
        ({"response_format": json_schema({"not": {}}, strict=True)}, "response_format.json_schema.schema"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_json": "["}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_json": '{"type": "number", "multipleOf": 1e999}'}, "guided_json"),
        ({"guided_json": '{"type": "integer", "multipleOf": 1' + "0" * 400 + "}"}, "guided_json"),
        ({"guided_regex": "(("}, "guided_regex"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice[1]"),
        ({"guided_choice": ["a", 5]}, "guided_choice[1]"),
        ({"guided_choice": [str(i) for i in range(10_000)]}, "guided_choice"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar"),
        ({"guided_grammar": "start: start"}, "guided_grammar"),
        ({"guided_grammar": 'start: %json {"multipleOf": 999983}'}, "guided_grammar"),
        ({"guided_grammar": '%llguidance {}\nstart: "a"'}, "guided_grammar"),
        ({"guided_grammar": "root ::= nothing"}, "guided_grammar"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else None,
)
async def test_what_is_wrong_is_named(memory: Memory, fields: dict[str, Any], param: str) -> None:
    assert_error(await memory.chat(**fields), 400, param)
    assert memory.engine.requests == []


async def test_each_of_n_answers_carries_the_grammar(memory: Memory) -> None:
    await memory.chat(n=3, seed=1, guided_regex="a+")
    grammars = {request.sampling.grammar for request in memory.engine.requests}
    assert grammars == {Grammar(kind=GrammarKind.REGEX, source="a+")}
    assert len(memory.engine.requests) == 3
