"""Fields that bind the answer to a grammar, under the names that OpenAI, vLLM, llama.cpp and SGLang give them.

A constraint must not be passed over, so an unknown key in one of these objects is refused.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field
from pydantic_core import from_json

from ekiden.api.errors import shown
from ekiden.api.hand_checks import rule
from ekiden.api.json_schema import TEXT, any_of
from ekiden.api.schema_base import ReadBy, Strict
from ekiden.api.shape import Fate, ignored, refused

MAX_GUIDED_CHOICES: Final = 1000
_ON_ONE_LINE: Final = "JSON comes on one line"
_NO_TAGS: Final = "a structure of tags is not taken; send a grammar"


def _read_schema(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict | str):
        raise rule(f"is {shown(value)}; it must be a JSON schema, as an object or as text")
    try:
        schema = from_json(value, allow_inf_nan=False) if isinstance(value, str) else value
    except ValueError as error:
        raise rule(f"is not valid JSON: {error}") from None
    if not isinstance(schema, dict):
        raise rule("holds no JSON object; a JSON schema is one")
    return schema


def _read_format(value: Any) -> dict[str, Any] | None:
    """Ollama's: a schema, or the word ``json`` for any object."""
    if value in ("", "json"):
        return {"type": "object"} if value else None
    if not isinstance(value, dict):
        raise rule(f"is {shown(value)}; it must be 'json' or a JSON schema")
    return value


GuidedJson = Annotated[dict[str, Any], ReadBy(_read_schema, any_of({"type": "object"}, TEXT))]
GuidedText = Annotated[str, Field(min_length=1)]
GuidedChoice = Annotated[list[GuidedText], Field(fail_fast=True, min_length=1, max_length=MAX_GUIDED_CHOICES)]


class JsonSchemaFormat(Strict):
    """A schema with its name. ``strict`` not true: keywords that cannot be enforced are passed over."""

    closed = True

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    definition: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Strict):
    """llama.cpp writes a ``schema`` beside the type ``json_object``."""

    closed = True

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    definition: Annotated[GuidedJson | None, Field(alias="schema")] = None


class StructuredOutputs(Strict):
    """vLLM's newer form of the ``guided_`` fields."""

    closed = True
    fates: ClassVar[Mapping[str, Fate]] = {
        "disable_fallback": ignored("there is one library that compiles grammars"),
        "disable_any_whitespace": ignored(_ON_ONE_LINE),
        "whitespace_pattern": ignored(_ON_ONE_LINE),
        "disable_additional_properties": refused("say so in the schema", fine=(False,)),
        "structural_tag": refused(_NO_TAGS),
    }

    as_json: Annotated[GuidedJson | None, Field(alias="json")] = None
    regex: GuidedText | None = None
    choice: GuidedChoice | None = None
    grammar: GuidedText | None = None
    json_object: bool | None = None


class ConstraintFields(Strict):
    """What chat and completions take; at most one of them can hold."""

    fates: ClassVar[Mapping[str, Fate]] = {
        "guided_decoding_backend": ignored("there is one library that compiles grammars"),
        "guided_whitespace_pattern": ignored(_ON_ONE_LINE),
        "structural_tag": refused(_NO_TAGS),
    }

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: GuidedJson | None = None
    guided_regex: GuidedText | None = None
    guided_choice: GuidedChoice | None = None
    guided_grammar: GuidedText | None = None
    # llama.cpp; some of its clients send an empty grammar for none.
    grammar: str | None = None
    json_schema: GuidedJson | None = None
    # Ollama.
    format: (
        Annotated[dict[str, Any], ReadBy(_read_format, any_of({"enum": ["json", ""]}, {"type": "object"}))] | None
    ) = None
    # SGLang.
    regex: GuidedText | None = None
    ebnf: GuidedText | None = None
