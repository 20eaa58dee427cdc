"""JSON schemas of the documentation, written shorter."""

from typing import Any, Final

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}


def any_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def array(items: Schema, least: int | None = 1, most: int | None = None) -> Schema:
    limits = {"minItems": least, "maxItems": most}
    return {"type": "array", "items": items} | {key: value for key, value in limits.items() if value is not None}


def open_object(properties: Schema) -> Schema:
    """An object that may have further fields."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def closed_object(properties: Schema) -> Schema:
    return open_object(properties) | {"additionalProperties": False}
