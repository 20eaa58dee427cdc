"""From a request's fields to the grammar that its answer must match, checked before the engine sees it.

``response_format`` is OpenAI's; ``guided_json``, ``guided_regex``, ``guided_choice`` and ``guided_grammar`` are the
extensions common elsewhere. Compiling happens on a thread, with limits on size and work; a grammar that cannot be used
is a 400 that says why.
"""

import asyncio
from typing import Any, Final

import msgspec
from pydantic_core import from_json

from ekiden.api.context import ApiContext
from ekiden.api.errors import invalid
from ekiden.api.schemas import GenerationFields
from ekiden.sampling.grammar_limits import GrammarError
from ekiden.sampling.structured import choice
from ekiden.state.sampling_params import Grammar, GrammarKind

ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}

# Directives of the library's Lark: its options, and schemas inside grammars, which go past the limits on schemas.
_FORBIDDEN: Final = ("%llguidance", "%json")


async def request_grammar(context: ApiContext, fields: GenerationFields) -> Grammar | None:
    """The grammar that the request asks for, compiled once. Raises :class:`ApiError` 400."""
    asked = [each for each in (_response_format(fields), _guided(fields)) if each is not None]
    if not asked:
        return None
    if len(asked) > 1:
        first, second = (param for param, _ in asked)
        raise invalid(second, f"{second} and {first} cannot both be given; an answer can follow one of them.")
    param, grammar = asked[0]
    await check_grammar(context, grammar, param)
    return grammar


async def check_grammar(context: ApiContext, grammar: Grammar, param: str) -> None:
    """Compile the grammar, off the event loop. Raises :class:`ApiError` 400 naming ``param``."""
    # Shielded: the result is kept for others, so a client that leaves must not cancel it.
    result = await asyncio.shield(asyncio.wrap_future(context.grammars.submit(grammar)))
    if isinstance(result, GrammarError):
        where = f" (at {result.where[:100]})" if result.where else ""
        raise invalid(param, f"{param} cannot be used{where}: {result}.", code="invalid_grammar")


def response_schema(fields: GenerationFields) -> tuple[dict[str, Any], bool] | None:
    """The schema of ``response_format``, and whether all of it must hold; None for plain text."""
    form = fields.response_format
    if form is None or form.type == "text":
        return None
    if form.json_schema is None:
        return ANY_OBJECT, True
    return form.json_schema.definition, form.json_schema.strict


def schema_grammar(schema: dict[str, Any], *, strict: bool) -> Grammar:
    kind = GrammarKind.JSON_SCHEMA if strict else GrammarKind.LENIENT_JSON_SCHEMA
    return Grammar(kind=kind, source=msgspec.json.encode(schema).decode())


def _response_format(fields: GenerationFields) -> tuple[str, Grammar] | None:
    form = fields.response_format
    if form is None or form.type == "text":
        if form is not None and form.json_schema is not None:
            raise invalid("response_format.json_schema", "response_format.json_schema is for the type 'json_schema'.")
        return None
    if form.type == "json_object" and form.json_schema is not None:
        raise invalid("response_format.json_schema", "response_format.json_schema is for the type 'json_schema'.")
    if form.type == "json_schema" and form.json_schema is None:
        raise invalid(
            "response_format.json_schema",
            "response_format.json_schema is required for the type 'json_schema'.",
            code="missing_parameter",
        )
    asked = response_schema(fields)
    assert asked is not None
    schema, strict = asked
    param = "response_format" if form.json_schema is None else "response_format.json_schema.schema"
    return param, schema_grammar(schema, strict=strict)


def _guided(fields: GenerationFields) -> tuple[str, Grammar] | None:
    given = [
        name
        for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
        if getattr(fields, name) is not None
    ]
    if len(given) > 1:
        raise invalid(given[1], f"{given[1]} and {given[0]} cannot both be given; an answer can follow one of them.")
    if fields.guided_json is not None:
        return "guided_json", schema_grammar(_schema_of(fields.guided_json), strict=True)
    if fields.guided_regex is not None:
        return "guided_regex", Grammar(kind=GrammarKind.REGEX, source=fields.guided_regex)
    if fields.guided_choice is not None:
        return "guided_choice", choice(fields.guided_choice)
    if fields.guided_grammar is not None:
        return "guided_grammar", _text_grammar(fields.guided_grammar)
    return None


def _schema_of(value: dict[str, Any] | str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    try:
        schema = from_json(value, allow_inf_nan=False)
    except ValueError as error:
        raise invalid("guided_json", f"guided_json is not valid JSON: {error}.") from None
    if not isinstance(schema, dict):
        raise invalid("guided_json", "guided_json holds no JSON object; a JSON schema is one.")
    return schema


def _text_grammar(text: str) -> Grammar:
    """Lark, or the grammars of llama.cpp, which write ``::=``."""
    found = next((word for word in _FORBIDDEN if word in text), None)
    if found is not None:
        raise invalid("guided_grammar", f"guided_grammar holds {found}, which is not taken; send a schema by itself.")
    return Grammar(kind=GrammarKind.GBNF if "::=" in text else GrammarKind.LARK, source=text)
