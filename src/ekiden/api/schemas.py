"""The request bodies of the API. Field names and meaning are OpenAI's; extensions are those common elsewhere.

Fields with no effect here are accepted and listed in :data:`NO_EFFECT`. Fields that would change the answer and are not
supported are refused with the reason in :data:`REFUSED`. Nothing is dropped silently.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from ekiden.api.errors import shown
from ekiden.api.schema_base import Strict, rule
from ekiden.api.tool_schemas import ToolChoice, Tools

MAX_CHOICES: Final = 128
"""Largest ``n``."""
MAX_REQUESTS: Final = 2048
"""Most answers of one call: prompts times ``n``."""
MAX_MESSAGES: Final = 4096
MAX_STOPS: Final = 4
MAX_STOP_LENGTH: Final = 1024
MAX_ENTRIES: Final = 1024
"""Most entries of ``logit_bias`` and of ``stop_token_ids``."""

MAX_GUIDED_CHOICES: Final = 1000

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")

NO_EFFECT: Final[dict[str, str]] = {
    "user": "any string",
    "metadata": "an object of up to 16 strings",
    "store": "false only: answers are not stored",
    "service_tier": "'auto' or 'default': there is one tier",
    "safety_identifier": "any string",
    "prompt_cache_key": "any string: prefixes are found by their content",
    "prompt_cache_retention": "any string",
    "prediction": "an object: a hint that changes no answer",
    "modalities": "['text'] only",
    "function_call": "'none' or 'auto': without functions it has no meaning",
    "stream_options.include_obfuscation": "true or false: streams carry no padding",
}
"""Fields that are accepted and change nothing, with the values taken. The documentation quotes this table."""

REFUSED: Final[dict[str, str]] = {
    "functions": "this older form of tools is not taken; send tools",
    "audio": "the model takes and gives text only",
    "web_search_options": "the server does not reach the network",
    "reasoning_effort": "the model has no reasoning setting",
    "verbosity": "the model has no verbosity setting",
    "suffix": "the model cannot fill in between a prompt and a suffix",
}
"""Known fields that are refused, and why."""


def _check_stop(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise rule(f"is {shown(value)}; it must be a string or a list of up to {MAX_STOPS} strings")
    if len(stops) > MAX_STOPS:
        raise rule(f"has {len(stops)} entries; at most {MAX_STOPS} are allowed")
    for index, stop in enumerate(stops):
        at = "" if isinstance(value, str) else f"[{index}]"
        if not isinstance(stop, str) or not stop:
            raise rule(f"is {shown(stop)}; it must be a string that is not empty", at)
        if len(stop) > MAX_STOP_LENGTH:
            raise rule(f"has {len(stop)} characters; at most {MAX_STOP_LENGTH} are allowed", at)
    return stops


def _check_logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise rule(f"is {shown(value)}; it must be an object from token ids to numbers")
    if len(value) > MAX_ENTRIES:
        raise rule(f"has {len(value)} entries; at most {MAX_ENTRIES} are allowed")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not isinstance(key, str) or not key.isascii() or not key.removeprefix("-").isdecimal() or len(key) > 20:
            raise rule(f"has the key {shown(key)}; keys must be token ids")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise rule(f"is {shown(bias)}; it must be a number between -100 and 100", f"[{key}]")
        biases[int(key)] = float(bias)
    return biases


def _is_token(value: Any) -> bool:
    return type(value) is int


def _check_prompt(value: Any) -> str | list[int] | list[str] | list[list[int]]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise rule(f"is {shown(value)}; it must be a string, a list of strings, token ids, or a list of token-id lists")
    if not value:
        raise rule("is empty; it must hold at least one token or text")
    first = value[0]
    if isinstance(first, str):
        kind, fits = "a string", [isinstance(entry, str) for entry in value]
    elif isinstance(first, list):
        kind, fits = "a list of token ids", [isinstance(entry, list) for entry in value]
    else:
        kind, fits = "a token id", [_is_token(entry) for entry in value]
    if not all(fits):
        index = fits.index(False)
        raise rule(f"is {shown(value[index])}; it must be {kind}", f"[{index}]")
    if isinstance(first, list):
        for index, tokens in enumerate(value):
            if not tokens:
                raise rule("is empty; it must hold at least one token", f"[{index}]")
            wrong = next((i for i, token in enumerate(tokens) if not _is_token(token)), None)
            if wrong is not None:
                raise rule(f"is {shown(tokens[wrong])}; it must be a token id", f"[{index}][{wrong}]")
    return value


def _check_content(value: Any) -> str:
    """Text, or text parts, which are joined by line breaks."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise rule(f"is {shown(value)}; it must be a string or a list of text parts")
    texts: list[str] = []
    for index, part in enumerate(value):
        if not isinstance(part, dict):
            raise rule(f"is {shown(part)}; it must be an object", f"[{index}]")
        kind = part.get("type")
        if kind != "text":
            raise rule(f"is {shown(kind)}; the model takes 'text' parts only", f"[{index}].type")
        if not isinstance(part.get("text"), str):
            raise rule(f"is {shown(part.get('text'))}; it must be a string", f"[{index}].text")
        unknown = next((key for key in part if key not in ("type", "text")), None)
        if unknown is not None:
            raise rule(f"has the unknown field {shown(unknown)}", f"[{index}]")
        texts.append(part["text"])
    return "\n".join(texts)


def _check_metadata(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > 16:
        raise rule(f"has {len(value)} entries; at most 16 are allowed")
    return value


def _check_messages_length(value: Any) -> Any:
    if isinstance(value, list) and not 1 <= len(value) <= MAX_MESSAGES:
        raise rule(f"has {len(value)} entries; it must have between 1 and {MAX_MESSAGES}")
    return value


_TOKENS_SCHEMA: Final = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT_SCHEMA: Final = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        _TOKENS_SCHEMA,
        {"type": "array", "items": _TOKENS_SCHEMA, "minItems": 1},
    ]
}
_STOP_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
_STOP_SCHEMA: Final = {"anyOf": [_STOP_TEXT, {"type": "array", "items": _STOP_TEXT, "maxItems": MAX_STOPS}]}
_BIAS_SCHEMA: Final = {
    "type": "object",
    "maxProperties": MAX_ENTRIES,
    "propertyNames": {"pattern": "^[0-9]+$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
}
_PART_SCHEMA: Final = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_CONTENT_SCHEMA: Final = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART_SCHEMA, "minItems": 1}]}

Prompts = Annotated[
    str | list[int] | list[str] | list[list[int]], PlainValidator(_check_prompt), WithJsonSchema(_PROMPT_SCHEMA)
]
Stops = Annotated[list[str], PlainValidator(_check_stop), WithJsonSchema(_STOP_SCHEMA)]
LogitBias = Annotated[dict[int, float], PlainValidator(_check_logit_bias), WithJsonSchema(_BIAS_SCHEMA)]
Content = Annotated[str, PlainValidator(_check_content), WithJsonSchema(_CONTENT_SCHEMA)]
Metadata = Annotated[dict[str, str], BeforeValidator(_check_metadata)]
TokenIds = Annotated[list[int], Field(fail_fast=True, max_length=MAX_ENTRIES)]


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


@dataclass(frozen=True, slots=True)
class JsonSchemaFormat:
    """``response_format.json_schema``. ``strict`` False: keywords that cannot be enforced are passed over."""

    name: str
    definition: dict[str, Any]
    strict: bool


def _check_json_schema(value: Any) -> JsonSchemaFormat:
    if not isinstance(value, dict):
        raise rule(f"is {shown(value)}; it must be an object")
    unknown = next((key for key in value if key not in ("name", "description", "schema", "strict")), None)
    if unknown is not None:
        raise rule(f"has the unknown field {shown(unknown)}")
    name, strict, schema = value.get("name"), value.get("strict"), value.get("schema")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise rule(f"is {shown(name)}; it must be 1 to 64 letters, digits, '_' or '-'", ".name")
    if not isinstance(value.get("description"), str | None):
        raise rule(f"is {shown(value['description'])}; it must be a string", ".description")
    if not isinstance(strict, bool | None):
        raise rule(f"is {shown(strict)}; it must be true or false", ".strict")
    if not isinstance(schema, dict | None):
        raise rule(f"is {shown(schema)}; it must be an object", ".schema")
    return JsonSchemaFormat(name, {"type": "object"} if schema is None else schema, bool(strict))


def _check_choices(value: Any) -> list[str]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_GUIDED_CHOICES:
        raise rule(f"is {shown(value)}; it must be a list of 1 to {MAX_GUIDED_CHOICES} strings")
    for index, choice in enumerate(value):
        if not isinstance(choice, str) or not choice:
            raise rule(f"is {shown(choice)}; it must be a string that is not empty", f"[{index}]")
    return value


def _check_guided_json(value: Any) -> dict[str, Any] | str:
    if not isinstance(value, dict | str):
        raise rule(f"is {shown(value)}; it must be a JSON schema, as an object or as text")
    return value


_JSON_SCHEMA_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
        "description": {"type": "string"},
        "schema": {"type": "object"},
        "strict": {"type": "boolean"},
    },
    "required": ["name"],
    "additionalProperties": False,
}


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: (
        Annotated[JsonSchemaFormat, PlainValidator(_check_json_schema), WithJsonSchema(_JSON_SCHEMA_SCHEMA)] | None
    ) = None


class GenerationFields(Strict):
    """What chat and completions share."""

    model: str
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Stops | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: LogitBias | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    # Extensions common elsewhere.
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    guided_json: (
        Annotated[
            dict[str, Any] | str,
            PlainValidator(_check_guided_json),
            WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}]}),
        ]
        | None
    ) = None
    guided_regex: Annotated[str, Field(min_length=1)] | None = None
    guided_choice: (
        Annotated[
            list[str],
            PlainValidator(_check_choices),
            WithJsonSchema(
                {
                    "type": "array",
                    "items": {"type": "string", "minLength": 1},
                    "minItems": 1,
                    "maxItems": MAX_GUIDED_CHOICES,
                }
            ),
        ]
        | None
    ) = None
    guided_grammar: Annotated[str, Field(min_length=1)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    # No effect here: NO_EFFECT.
    user: str | None = None
    metadata: Metadata | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None


class FunctionCall(Strict):
    name: str
    arguments: str | None = None


class ToolCall(Strict):
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class ChatMessage(Strict):
    """A message of the conversation. The last five fields are those that replayed answers carry."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=MAX_ENTRIES)] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None


Messages = Annotated[
    list[ChatMessage],
    Field(fail_fast=True),
    BeforeValidator(_check_messages_length),
    WithJsonSchema(
        {
            "type": "array",
            "items": {"$ref": "#/components/schemas/ChatMessage"},
            "minItems": 1,
            "maxItems": MAX_MESSAGES,
        }
    ),
]


class ChatRequest(GenerationFields):
    messages: Messages
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    # No effect here: NO_EFFECT.
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prediction: dict[str, Any] | None = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True, max_length=1)] | None = None
    function_call: Literal["none", "auto"] | None = None
    # Refused with a reason: REFUSED.
    functions: None = None
    audio: None = None
    web_search_options: None = None
    reasoning_effort: None = None
    verbosity: None = None


class CompletionRequest(GenerationFields):
    prompt: Prompts
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    suffix: None = None


class TokenizeRequest(Strict):
    """Either ``prompt`` or ``messages``."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: Annotated[list[int], Field(fail_fast=True)]
