"""Arguments of calls take the properties that a function names, and no others unless it asks for them."""

from copy import deepcopy
from typing import Any

import jsonschema_rs
import pytest

from ekiden.api.tools.arguments import named_only

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(
    ("schema", "good", "refused"),
    [
        (CITY, {"city": "Oslo"}, {"city": "Oslo", "temperature": 1}),
        (
            {"type": "object", "properties": {"at": {"anyOf": [CITY, {"type": "null"}]}}},
            {"at": {"city": "Oslo"}},
            {"at": {"city": "Oslo", "temperature": 1}},
        ),
        (
            {"type": "object", "properties": {"all": {"items": {"$ref": "#/$defs/C"}}}, "$defs": {"C": CITY}},
            {"all": [{"city": "Oslo"}]},
            {"all": [{"city": "Oslo", "temperature": 1}]},
        ),
    ],
)
def test_other_properties_are_not_taken(schema: dict[str, Any], good: Any, refused: Any) -> None:
    before = deepcopy(schema)
    closed = jsonschema_rs.validator_for(named_only(schema))
    assert closed.is_valid(good)
    assert not closed.is_valid(refused)
    assert jsonschema_rs.validator_for(schema).is_valid(refused)
    assert schema == before


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**CITY, "additionalProperties": True},
        {**CITY, "additionalProperties": {"type": "string"}},
        {**CITY, "patternProperties": {"^x": {}}},
        {**CITY, "minProperties": 3},
        {**CITY, "required": ["city", "other"]},
        {"allOf": [CITY, {"type": "object", "properties": {"street": {}}, "required": ["street"]}]},
        {**CITY, "anyOf": [{"properties": {"street": {}}, "required": ["street"]}]},
        {"properties": {"street": {}}, "required": ["street"], "$ref": "#/$defs/C", "$defs": {"C": CITY}},
    ],
)
def test_an_object_that_takes_or_needs_others_stays_as_it_is(schema: dict[str, Any]) -> None:
    assert named_only(schema) == schema
