"""Finds the part of a JSON schema that the library refuses: its own message names no place in the schema."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

SECONDS: Final = 0.2
"""How long may be looked; what was found until then is told."""

_DEFINITIONS: Final = ("$defs", "definitions")


def locate(schema: Mapping[str, Any], fault: Callable[[Any], str | None]) -> tuple[str, str | None]:
    """The path of the innermost part that cannot be used by itself, and what is wrong with it.

    ``fault`` says what is wrong with a schema, or None. The path is empty, and the fault None, where no part is wrong
    alone.
    """
    until = time.monotonic() + SECONDS
    shared = {key: schema[key] for key in _DEFINITIONS if key in schema}
    where, part, found = "", schema, None
    while True:
        for place, inner in _parts(part):
            if time.monotonic() > until:
                return where, found
            words = fault({**shared, **inner} if isinstance(inner, Mapping) else inner)
            if words is not None:
                where, part, found = f"{where}.{place}" if where else place, inner, words
                break
        else:
            return where, found


def _parts(schema: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(schema, Mapping):
        return
    for key in ("properties", "patternProperties"):
        if isinstance(schema.get(key), Mapping):
            yield from ((f"{key}.{name}", inner) for name, inner in schema[key].items())
    for key in ("items", "additionalProperties"):
        if key in schema and not isinstance(schema[key], bool):
            yield key, schema[key]
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(schema.get(key), list):
            yield from ((f"{key}[{index}]", inner) for index, inner in enumerate(schema[key]))
