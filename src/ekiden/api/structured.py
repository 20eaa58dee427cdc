"""From a request's fields to the grammar that its answer must match, compiled before the engine gets the request.

``response_format`` is OpenAI's; ``guided_json``, ``guided_regex``, ``guided_choice`` and ``guided_grammar`` are the
extensions common elsewhere. Compiling happens on a thread, with limits on size and work; a grammar that cannot be used
is a 400 that says why.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from ekiden.api.call import AnswerFormat
from ekiden.api.errors import invalid
from ekiden.api.fields import GenerationFields, JsonSchemaFormat, ResponseFormat
from ekiden.api.text import ModelText
from ekiden.sampling.grammar_limits import GrammarError
from ekiden.sampling.structured import choice
from ekiden.state.sampling_params import Grammar, GrammarKind

ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}

# Directives of llguidance's Lark: its options, and embedded schemas, which would bypass the limits on schemas.
_FORBIDDEN: Final = ("%llguidance", "%json")


async def check_grammar(text: ModelText, grammar: Grammar, param: str) -> None:
    """Compile the grammar, off the event loop. Raises :class:`ApiError` 400 naming ``param``."""
    # Shielded: the result is cached for other requests, so a client that leaves must not cancel it.
    result = await asyncio.shield(asyncio.wrap_future(text.grammars.submit(grammar)))
    if isinstance(result, GrammarError):
        raise invalid(param, f"{param} cannot be used{place_in(result)}: {result}.", code="invalid_grammar")


def place_in(error: GrammarError) -> str:
    """Where in a grammar its fault is, if that is known, for a message."""
    return f" (at {error.where[:100]})" if error.where else ""


def json_format(param: str, schema: dict[str, Any] = ANY_OBJECT, *, strict: bool = True) -> AnswerFormat:
    """JSON that matches ``schema``, which is the value of the field ``param``."""
    kind = GrammarKind.JSON_SCHEMA if strict else GrammarKind.LENIENT_JSON_SCHEMA
    return AnswerFormat(param, Grammar(kind=kind, source=msgspec.json.encode(schema).decode()), schema, strict)


def schema_format(param: str, form: JsonSchemaFormat) -> AnswerFormat:
    return json_format(param, ANY_OBJECT if form.definition is None else form.definition, strict=bool(form.strict))


def format_asked(fields: GenerationFields) -> AnswerFormat | None:
    """What the fields of chat and completions ask of the answer. Raises :class:`ApiError` 400 for more than one."""
    asked = None if fields.response_format is None else _response_format(fields.response_format)
    given = [] if asked is None else [asked.param]
    given += [name for name in _GUIDED if getattr(fields, name) is not None]
    if len(given) > 1:
        raise invalid(given[1], f"{given[1]} and {given[0]} cannot both be given; an answer can follow one of them.")
    return _GUIDED[given[0]](getattr(fields, given[0])) if given and asked is None else asked


def _response_format(form: ResponseFormat) -> AnswerFormat | None:
    param = "response_format.json_schema"
    if form.type != "json_schema":
        if form.json_schema is not None:
            raise invalid(param, f"{param} is for the type 'json_schema'.")
        return json_format("response_format") if form.type == "json_object" else None
    if form.json_schema is None:
        raise invalid(param, f"{param} is required for the type 'json_schema'.", code="missing_parameter")
    return schema_format(f"{param}.schema", form.json_schema)


def _text_grammar(text: str) -> Grammar:
    """Lark, or the grammars of llama.cpp, which write ``::=``."""
    found = next((word for word in _FORBIDDEN if word in text), None)
    if found is not None:
        raise invalid("guided_grammar", f"guided_grammar holds {found}, which is not taken; send a schema by itself.")
    return Grammar(kind=GrammarKind.GBNF if "::=" in text else GrammarKind.LARK, source=text)


_GUIDED: Final[dict[str, Callable[[Any], AnswerFormat]]] = {
    "guided_json": partial(json_format, "guided_json"),
    "guided_regex": lambda text: AnswerFormat("guided_regex", Grammar(kind=GrammarKind.REGEX, source=text)),
    "guided_choice": lambda choices: AnswerFormat("guided_choice", choice(choices)),
    "guided_grammar": lambda text: AnswerFormat("guided_grammar", _text_grammar(text)),
}
"""The formats that one field alone asks for."""
