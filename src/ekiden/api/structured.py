"""From a request's fields to the grammar that its answer must match, compiled before the engine gets the request.

Compiling happens on a thread, with limits on size and work; a grammar that cannot be used is a 400 that says why.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from ekiden.api.call import AnswerFormat
from ekiden.api.constraint_fields import ConstraintFields, JsonSchemaFormat, ResponseFormat
from ekiden.api.errors import ApiError, invalid
from ekiden.api.text import ModelText
from ekiden.sampling.grammar_limits import GrammarError
from ekiden.sampling.structured import choice
from ekiden.state.sampling_params import Grammar, GrammarKind

ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}

# Directives of llguidance's Lark: its options, and embedded schemas, which would bypass the limits on schemas.
_FORBIDDEN: Final = ("%llguidance", "%json")


async def compiles(text: ModelText, grammar: Grammar) -> GrammarError | None:
    """Compile the grammar, off the event loop; what is wrong with it, if anything is."""
    # Shielded: the result is cached for other requests, so a client that leaves must not cancel it.
    result = await asyncio.shield(asyncio.wrap_future(text.grammars.submit(grammar)))
    return result if isinstance(result, GrammarError) else None


async def check_grammar(text: ModelText, grammar: Grammar, param: str) -> None:
    """Raises :class:`ApiError` 400 naming ``param`` for a grammar that does not compile."""
    if (error := await compiles(text, grammar)) is not None:
        raise unusable(error, param)


def unusable(error: GrammarError, param: str, of: str = "") -> ApiError:
    """The 400 for a grammar in the field ``param``; ``of`` says whose it is."""
    where = f" (at {error.where[:100]})" if error.where else ""
    return invalid(param, f"{param}{of} cannot be used{where}: {error}.", code="invalid_grammar")


def json_format(param: str, schema: dict[str, Any] = ANY_OBJECT, *, strict: bool = True) -> AnswerFormat:
    """JSON that matches ``schema``, which is the value of the field ``param``."""
    kind = GrammarKind.JSON_SCHEMA if strict else GrammarKind.LENIENT_JSON_SCHEMA
    return AnswerFormat(param, Grammar(kind=kind, source=msgspec.json.encode(schema).decode()), schema, strict)


def schema_format(param: str, form: JsonSchemaFormat) -> AnswerFormat:
    return json_format(param, ANY_OBJECT if form.definition is None else form.definition, strict=bool(form.strict))


def format_asked(fields: ConstraintFields) -> AnswerFormat | None:
    """What the fields of chat and completions ask of the answer. Raises :class:`ApiError` 400 for more than one."""
    asked = [*_fields_asked(fields)]
    if fields.response_format is not None and (form := _response_format(fields.response_format)) is not None:
        asked.insert(0, (form.param, lambda _: form, None))
    if len(asked) > 1:
        (one, _, _), (other, _, _) = asked[:2]
        raise invalid(other, f"{other} and {one} cannot both be given; an answer can follow one of them.")
    return next((make(value) for _, make, value in asked), None)


Asked = tuple[str, Callable[[Any], AnswerFormat], Any]
"""A field by its path, what makes a format of its value, and the value."""


def _fields_asked(fields: ConstraintFields) -> Iterator[Asked]:
    inner = fields.structured_outputs
    for holder, prefix, names in ((fields, "", _FIELDS), (inner, "structured_outputs.", _INNER)):
        for name, make in names.items():
            if holder is not None and (value := getattr(holder, name)) not in (None, "", False):
                param = prefix + name.removeprefix("as_")
                yield param, partial(make, param), value


def _response_format(form: ResponseFormat) -> AnswerFormat | None:
    param = "response_format.json_schema"
    if form.definition is not None:
        if form.type != "json_object":
            raise invalid("response_format.schema", "response_format.schema is for the type 'json_object'.")
        return json_format("response_format.schema", form.definition)
    if form.type != "json_schema":
        if form.json_schema is not None:
            raise invalid(param, f"{param} is for the type 'json_schema'.")
        return json_format("response_format") if form.type == "json_object" else None
    if form.json_schema is None:
        raise invalid(param, f"{param} is required for the type 'json_schema'.", code="missing_parameter")
    return schema_format(f"{param}.schema", form.json_schema)


def _of_regex(param: str, source: str) -> AnswerFormat:
    return AnswerFormat(param, Grammar(kind=GrammarKind.REGEX, source=source))


def _of_choice(param: str, choices: list[str]) -> AnswerFormat:
    return AnswerFormat(param, choice(choices))


def _of_grammar(param: str, text: str) -> AnswerFormat:
    """Lark, or the grammars of llama.cpp, which write ``::=``."""
    found = next((word for word in _FORBIDDEN if word in text), None)
    if found is not None:
        raise invalid(param, f"{param} holds {found}, which is not taken; send a schema by itself.")
    return AnswerFormat(param, Grammar(kind=GrammarKind.GBNF if "::=" in text else GrammarKind.LARK, source=text))


def _of_any_object(param: str, wanted: bool) -> AnswerFormat:
    return json_format(param)


_FIELDS: Final[dict[str, Callable[[str, Any], AnswerFormat]]] = {
    "guided_json": json_format,
    "guided_regex": _of_regex,
    "guided_choice": _of_choice,
    "guided_grammar": _of_grammar,
    "grammar": _of_grammar,
    "json_schema": json_format,
    "format": json_format,
    "regex": _of_regex,
    "ebnf": _of_grammar,
}
"""The formats that one field alone asks for, and below those of the fields of ``structured_outputs``."""
_INNER: Final[dict[str, Callable[[str, Any], AnswerFormat]]] = {
    "as_json": json_format,
    "regex": _of_regex,
    "choice": _of_choice,
    "grammar": _of_grammar,
    "json_object": _of_any_object,
}
