"""Limits on grammars, checked before the library compiles them.

The library bounds its own work with a few exceptions: it recurses over references and definitions, and some keywords
cost time in proportion to a number in the schema. These limits keep compiling under a second and the stack shallow.
They also refuse schemas that no finite text can match, which the library would notice only during generation.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

MAX_SOURCE: Final = 128 * 1024
"""Characters of a grammar."""
MAX_SCHEMA_DEPTH: Final = 64
MAX_LOOKS: Final = 200_000
"""Steps that resolving the references may take."""
MAX_MULTIPLE: Final = 1000
MAX_REGEX: Final = 8 * 1024
MAX_GBNF: Final = 32 * 1024
MAX_RULES: Final = 500
"""Definitions of a Lark grammar."""


class GrammarError(ValueError):
    """A grammar that cannot be used. ``where`` is the path of the faulty part inside it, or empty."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where


def check_source(source: str, limit: int = MAX_SOURCE) -> None:
    if len(source) > limit:
        raise GrammarError(f"it has {len(source)} characters; at most {limit} are allowed")


def check_lark(source: str) -> None:
    """Raise :class:`GrammarError` for a Lark grammar that is too large."""
    check_source(source)
    rules = sum(":" in line and _begins_a_rule(line.lstrip()) for line in source.splitlines())
    if rules > MAX_RULES:
        raise GrammarError(f"it has {rules} definitions; at most {MAX_RULES} are allowed")


def _begins_a_rule(line: str) -> bool:
    return line[:1].isalpha() or line[:1] in ("_", "?", "!")


def check_schema(schema: Any) -> None:
    """Raise :class:`GrammarError` for a schema that is too large, or that no finite text can match."""
    if not isinstance(schema, Mapping):
        raise GrammarError(f"a JSON schema is an object, not {type(schema).__name__}")
    counts = dict.fromkeys(_LIMITS, 0.0)
    for where, value, depth in _walk(schema):
        if depth > MAX_SCHEMA_DEPTH:
            raise GrammarError(f"it is nested deeper than {MAX_SCHEMA_DEPTH} levels", where)
        for (name, limit), found in zip(_LIMITS.items(), _counted(value), strict=True):
            counts[name] += found
            if counts[name] > limit:
                raise GrammarError(f"it has more than {limit} {name}", where)
    _References(schema).check()


_LIMITS: Final = {
    "objects": 2000,
    "properties": 500,
    "enum values": 1000,
    "references": 500,
    "as the sum of its multipleOf, counted in their last decimal places": MAX_MULTIPLE,
}
"""How many of each a whole schema may have."""


def _walk(schema: Any) -> Iterator[tuple[str, Mapping[str, Any], int]]:
    """Every object in ``schema`` with its path and depth, without recursion."""
    pending: list[tuple[str, Any, int]] = [("", schema, 0)]
    while pending:
        where, value, depth = pending.pop()
        if isinstance(value, Mapping):
            yield where, value, depth
            pending += [(f"{where}.{key}" if where else str(key), item, depth + 1) for key, item in value.items()]
        elif isinstance(value, list):
            pending += [(f"{where}[{index}]", item, depth + 1) for index, item in enumerate(value)]


def _counted(value: Mapping[str, Any]) -> tuple[float, ...]:
    """What one object of a schema adds to each of :data:`_LIMITS`, in their order."""
    properties, values = value.get("properties"), value.get("enum")
    return (
        1,
        len(properties) if isinstance(properties, Mapping) else 0,
        len(values) if isinstance(values, list) else 0,
        isinstance(value.get("$ref"), str),
        _units(value.get("multipleOf")),
    )


def _units(multiple: Any) -> float:
    """``multiple`` in units of its last decimal place (0.25 is 25); infinite for more than three decimal places."""
    if isinstance(multiple, bool) or not isinstance(multiple, int | float):
        return 0.0
    for places in range(4):
        scaled: float = multiple * 10**places
        if abs(scaled) <= MAX_MULTIPLE and scaled == int(scaled):
            return abs(scaled)
    return float("inf")


class _References:
    """Finds references that lead only to themselves, and schemas that only an infinite text would match.

    A schema *ends* when a finite value may match it, as far as its references decide that. This is the least fixed
    point over the targets of all references in the schema.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        references = [value["$ref"] for _, value, _ in _walk(schema) if isinstance(value.get("$ref"), str)]
        self._targets = {reference: _resolve(schema, reference) for reference in references}
        self._ending: set[str] = set()
        self._looks = 0

    def check(self) -> None:
        for reference in self._targets:
            self._check_chain(reference)
        pending = list(self._targets)
        while ended := {reference for reference in pending if self._note_end(reference)}:
            # Reversed, so that two passes resolve a chain, whichever way it was written.
            pending = [reference for reference in reversed(pending) if reference not in ended]
        if not self._ends(self._root):
            raise GrammarError("it requires itself inside itself, so no finite text can match it")

    def _check_chain(self, reference: str) -> None:
        seen = {reference}
        target = self._targets[reference]
        while isinstance(target, Mapping) and isinstance(target.get("$ref"), str):
            following = target["$ref"]
            if following in seen:
                raise GrammarError(f"the reference {following!r:.100} leads to itself and to nothing else")
            seen.add(following)
            target = self._targets.get(following)

    def _note_end(self, reference: str) -> bool:
        if ends := self._ends(self._targets[reference]):
            self._ending.add(reference)
        return ends

    def _ends(self, schema: Any) -> bool:
        if not isinstance(schema, Mapping):
            return True
        self._looks += 1
        if self._looks > MAX_LOOKS:
            raise GrammarError("following its references takes too long; use fewer of them, or nest them less")
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in self._ending:
            return False
        alternatives = filter(None, (_listed(schema.get(key)) for key in ("anyOf", "oneOf")))
        return all(any(map(self._ends, choices)) for choices in alternatives) and all(map(self._ends, _parts(schema)))


def _parts(schema: Mapping[str, Any]) -> list[Any]:
    """The schemas that parts of every value of ``schema`` must match."""
    parts = _listed(schema.get("allOf"))
    kind = schema.get("type")
    if kind in ("object", ["object"]) and isinstance(properties := schema.get("properties"), Mapping):
        parts += [properties.get(name) for name in _listed(schema.get("required")) if isinstance(name, str)]
    least = schema.get("minItems")
    if kind in ("array", ["array"]) and isinstance(least, int) and least > 0:
        leading = _listed(schema.get("prefixItems"))[:least]
        parts += leading if len(leading) == least else [*leading, schema.get("items")]
    return parts


def _listed(value: Any) -> list[Any]:
    """A copy of a list; empty for other values."""
    return list(value) if isinstance(value, list) else []


def _resolve(schema: Mapping[str, Any], reference: str) -> Any:
    """The target of a local reference; None for other references, which the library resolves or refuses."""
    if not reference.startswith("#"):
        return None
    value: Any = schema
    for part in reference[1:].strip("/").split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if not name:
            continue
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and name.isascii() and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value
