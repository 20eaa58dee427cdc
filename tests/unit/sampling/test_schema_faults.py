"""The part of a schema that is at fault is found, within a bounded time."""

import itertools
from typing import Any

import pytest

from ekiden.sampling.schema_faults import SECONDS, locate

BAD = {"type": "bad"}


def fault(schema: Any) -> str | None:
    """Stands for the library: whatever holds a bad type anywhere cannot be used."""
    return "it is bad" if "'bad'" in repr(schema) else None


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"properties": {"a": {}, "b": {"items": {"anyOf": [{}, BAD]}}}}, "properties.b.items.anyOf[1]"),
        ({"properties": {"a": {"additionalProperties": BAD, "items": True}}}, "properties.a.additionalProperties"),
        (
            {"allOf": [{"prefixItems": [{}, {"patternProperties": {"x": BAD}}]}]},
            "allOf[0].prefixItems[1].patternProperties.x",
        ),
        ({"type": "bad", "properties": {"a": {}}}, ""),
        ({"properties": ["bad"]}, ""),
    ],
)
def test_the_innermost_part_is_named(schema: dict[str, Any], where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ekiden.sampling.schema_faults.SECONDS", 60.0)
    assert locate(schema, fault) == (where, "it is bad" if where else None)


def test_definitions_go_with_each_part() -> None:
    seen: list[Any] = []
    locate({"$defs": {"x": {}}, "properties": {"a": {"$ref": "#/$defs/x"}, "b": True}}, seen.append)
    assert seen == [{"$defs": {"x": {}}, "$ref": "#/$defs/x"}, True]


def test_looking_ends_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(0.0, SECONDS / 10)
    monkeypatch.setattr("ekiden.sampling.schema_faults.time.monotonic", lambda: next(ticks))
    seen: list[Any] = []
    assert locate({"properties": {f"a{number}": {} for number in range(1000)}}, seen.append) == ("", None)
    assert 5 < len(seen) < 15
