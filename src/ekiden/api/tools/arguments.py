"""What a call's arguments may hold beside the properties that the function names."""

from typing import Any, Final

_COMBINING: Final = frozenset(
    {"allOf", "if", "not", "dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems"}
)
"""Keywords by which several schemas describe one object: a property that one of them names is unknown to another."""
_ALTERNATIVES: Final = frozenset({"anyOf", "oneOf", "$ref"})
"""Keywords that combine in the same way when they stand beside ``properties``."""
_OTHERS: Final = frozenset({"additionalProperties", "patternProperties", "minProperties"})
"""Keywords by which an object takes, or may need, properties beside those that it names."""
_ONE: Final = ("items", "additionalProperties", "contains")
_MANY: Final = ("anyOf", "oneOf", "prefixItems")
_NAMED: Final = ("properties", "$defs", "definitions", "patternProperties")


def named_only(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` for the arguments of a call, without properties that no function names.

    JSON Schema lets an object have any property beside those that it names, so a small model goes on inventing some
    until its answer is cut. An object that names its properties and does not speak of others takes no others here;
    whatever matches the result also matches ``schema``.
    """
    if _combines(schema):
        return schema
    closed = _closed(schema)
    assert isinstance(closed, dict)
    return closed


def _combines(value: Any) -> bool:
    """Whether several schemas describe one object anywhere. A property of such a name counts too, which is harmless."""
    if isinstance(value, dict):
        beside = "properties" in value and not _ALTERNATIVES.isdisjoint(value)
        return beside or not _COMBINING.isdisjoint(value) or any(map(_combines, value.values()))
    return isinstance(value, list) and any(map(_combines, value))


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    for key in _ONE:
        if key in schema:
            result[key] = _closed(schema[key])
    for key in _MANY:
        if isinstance(schema.get(key), list):
            result[key] = [_closed(each) for each in schema[key]]
    for key in _NAMED:
        if isinstance(schema.get(key), dict):
            result[key] = {name: _closed(each) for name, each in schema[key].items()}
    properties, required = schema.get("properties"), schema.get("required", [])
    if (
        isinstance(properties, dict)
        and _OTHERS.isdisjoint(schema)
        and isinstance(required, list)
        and all(name in properties for name in required)
    ):
        result["additionalProperties"] = False
    return result
