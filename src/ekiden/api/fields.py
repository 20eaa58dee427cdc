"""Fields that several doors have, with their types and how they are described.

The bounds of what goes to the engine are the engine's own (:mod:`ekiden.state.sampling_params`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from ekiden.api.call import NamedChoice, ToolChoice
from ekiden.api.errors import invalid, shown
from ekiden.api.schema_base import Strict, Within, no_effect, only_fields, rule
from ekiden.state.sampling_params import (
    BIAS,
    BOUNDS,
    MAX_ENTRIES,
    MAX_STOP_LENGTH,
    MAX_STOPS,
    Bound,
    InvalidSamplingParams,
    SamplingParams,
    check_stops,
)

MAX_CHOICES: Final = 128
"""Largest ``n``."""
MAX_MESSAGES: Final = 4096
MAX_TOOLS: Final = 128
MAX_GUIDED_CHOICES: Final = 1000

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def _check_stop(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise rule(f"is {shown(value)}; it must be a string or a list of up to {MAX_STOPS} strings")
    for index, stop in enumerate(stops[: MAX_STOPS + 1]):
        if not isinstance(stop, str):
            raise rule(f"is {shown(stop)}; it must be a string that is not empty", f"[{index}]")
    try:
        check_stops(stops)
    except InvalidSamplingParams as error:
        raise rule(error.text, error.at) from None
    return stops


def _check_logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise rule(f"is {shown(value)}; it must be an object from token ids to numbers")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not isinstance(key, str) or not key.isascii() or not key.removeprefix("-").isdecimal() or len(key) > 20:
            raise rule(f"has the key {shown(key)}; keys must be token ids")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not BIAS.allows(bias):
            raise rule(f"is {shown(bias)}; it must be a number {BIAS.words}", f"[{key}]")
        biases[int(key)] = float(bias)
    return biases


def _check_metadata(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > 16:
        raise rule(f"has {len(value)} entries; at most 16 are allowed")
    return value


def _all_tokens(value: Any) -> Any:
    """vLLM writes -1 for "all tokens", where the engine has 0."""
    return 0 if type(value) is int and value == -1 else value


_STOP_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
_STOPS_SCHEMA: Final = {"type": "array", "items": _STOP_TEXT, "maxItems": MAX_STOPS}
_BIAS_SCHEMA: Final = {
    "type": "object",
    "maxProperties": MAX_ENTRIES,
    "propertyNames": {"pattern": "^[0-9]+$"},
    "additionalProperties": {"type": "number", "minimum": BIAS.least, "maximum": BIAS.most},
}

Stops = Annotated[list[str], PlainValidator(_check_stop), WithJsonSchema({"anyOf": [_STOP_TEXT, _STOPS_SCHEMA]})]
LogitBias = Annotated[dict[int, float], PlainValidator(_check_logit_bias), WithJsonSchema(_BIAS_SCHEMA)]
Metadata = Annotated[dict[str, str], BeforeValidator(_check_metadata)]
TokenIds = Annotated[list[int], Field(fail_fast=True, max_length=MAX_ENTRIES)]

Temperature = Annotated[float, Within(BOUNDS["temperature"])]
TopP = Annotated[float, Within(BOUNDS["top_p"])]
TopK = Annotated[
    int,
    Within(BOUNDS["top_k"]),
    BeforeValidator(_all_tokens),
    WithJsonSchema({"type": "integer", "minimum": -1}),
]
MinP = Annotated[float, Within(BOUNDS["min_p"])]
Seed = Annotated[int, Within(BOUNDS["seed"])]
MaxTokens = Annotated[int, Within(BOUNDS["max_tokens"])]
PresencePenalty = Annotated[float, Within(BOUNDS["presence_penalty"])]
FrequencyPenalty = Annotated[float, Within(BOUNDS["frequency_penalty"])]
RepetitionPenalty = Annotated[float, Within(BOUNDS["repetition_penalty"])]
Choices = Annotated[int, Within(Bound(1, MAX_CHOICES, f"between 1 and {MAX_CHOICES}"))]
Priority = Annotated[int, Within(Bound(-(2**31), 2**31 - 1, "a whole number of at most 32 bits"))]

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


@dataclass(frozen=True, slots=True)
class JsonSchemaFormat:
    """A schema with its name. ``strict`` False: keywords that cannot be enforced are passed over."""

    name: str
    definition: dict[str, Any]
    strict: bool


def read_json_schema(value: Any) -> JsonSchemaFormat:
    if not isinstance(value, dict):
        raise rule(f"is {shown(value)}; it must be an object")
    only_fields(value, ("name", "description", "schema", "strict"), "")
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
        Annotated[JsonSchemaFormat, PlainValidator(read_json_schema), WithJsonSchema(_JSON_SCHEMA_SCHEMA)] | None
    ) = None


GuidedJson = Annotated[
    dict[str, Any] | str,
    PlainValidator(_check_guided_json),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}]}),
]
_CHOICE_TEXT: Final = {"type": "string", "minLength": 1}
GuidedChoice = Annotated[
    list[str],
    PlainValidator(_check_choices),
    WithJsonSchema({"type": "array", "items": _CHOICE_TEXT, "minItems": 1, "maxItems": MAX_GUIDED_CHOICES}),
]


class GenerationFields(Strict):
    """What chat and completions share."""

    model: str
    temperature: Temperature | None = None
    top_p: TopP | None = None
    n: Choices | None = None
    stop: Stops | None = None
    seed: Seed | None = None
    presence_penalty: PresencePenalty | None = None
    frequency_penalty: FrequencyPenalty | None = None
    logit_bias: LogitBias | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    # Extensions common elsewhere.
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    min_tokens: Annotated[int, Within(BOUNDS["min_tokens"])] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    guided_json: GuidedJson | None = None
    guided_regex: Annotated[str, Field(min_length=1)] | None = None
    guided_choice: GuidedChoice | None = None
    guided_grammar: Annotated[str, Field(min_length=1)] | None = None
    prompt_logprobs: Annotated[int, Within(BOUNDS["prompt_logprobs"])] | None = None
    priority: Priority | None = None
    # Without effect: see ``fates``.
    user: str | None = None
    metadata: Metadata | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None


GENERATION_FATES: Final = {
    "user": no_effect("any string"),
    "metadata": no_effect("an object of up to 16 strings"),
    "store": no_effect("false only: answers are not stored"),
    "service_tier": no_effect("'auto' or 'default': there is one tier"),
    "stream_options.include_obfuscation": no_effect("true or false: streams carry no padding"),
}


def check_streaming(fields: GenerationFields) -> bool:
    """True when the client wants a chunk with usage. Raises :class:`ApiError` 400 for what cannot be streamed."""
    if fields.stream and fields.prompt_logprobs is not None:
        raise invalid("prompt_logprobs", "prompt_logprobs cannot be streamed; leave out stream, or use echo.")
    if fields.stream_options is None:
        return False
    if not fields.stream:
        raise invalid("stream_options", "stream_options is given without stream; it is allowed only with stream: true.")
    return bool(fields.stream_options.include_usage)


def sampling_of(fields: Strict, defaults: SamplingParams, **own: Any) -> SamplingParams:
    """The values that ``fields`` has under the engine's names, over the defaults; ``own`` takes their place."""
    values = {name: getattr(fields, name, None) for name in SamplingParams.__struct_fields__} | own
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if v is not None}
    return msgspec.structs.replace(defaults, **given)


def choice_reader(*, nested: bool) -> Callable[[Any], ToolChoice]:
    """Reads ``tool_choice``; ``nested``: a function's name stands in an object of its own, as chat has it."""
    place = ".function" if nested else ""

    def read(value: Any) -> ToolChoice:
        if value in ("none", "auto", "required"):
            chosen: Literal["none", "auto", "required"] = value
            return chosen
        kind = value.get("type") if isinstance(value, dict) else None
        if kind == "allowed_tools":
            # OpenAI's choice of a part of ``tools`` is no nonsense, but a request can say the same with less.
            way_out = "send in tools only the functions that may be called"
            raise rule(f"is 'allowed_tools', which is not taken; {way_out}", ".type")
        if kind != "function":
            raise rule(f"is {shown(value)}; it must be 'none', 'auto', 'required' or one function by its name")
        function = value.get("function") if nested else value
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise rule(f"is {shown(function)}; it must be an object with the function's name", place)
        only_fields(value, ("type", "function" if nested else "name"), "")
        only_fields(function, ("name",) if nested else ("type", "name"), place)
        return NamedChoice(function["name"], f"tool_choice{place}.name")

    return read


def choice_schema(*, nested: bool) -> dict[str, Any]:
    name = {"name": {"type": "string"}}
    own = {"function": _closed_object(name)} if nested else name
    return {"anyOf": [{"enum": ["none", "auto", "required"]}, _closed_object({"type": {"const": "function"}, **own})]}


def _closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
