"""Fields that several doors share: their types, checks and descriptions.

The bounds of what goes to the engine are the engine's own (:mod:`ekiden.state.sampling_params`).
"""

from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import from_json

from ekiden.api.errors import invalid, shown
from ekiden.api.hand_checks import rule
from ekiden.api.json_schema import TEXT, any_of, array
from ekiden.api.schema_base import Fate, ReadBy, Strict, Within, no_effect
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
MAX_GUIDED_CHOICES: Final = 1000


def _check_stops(value: Any, *, or_one: bool = False) -> list[str]:
    """A list of stop strings; with ``or_one`` also one string by itself."""
    stops = [value] if or_one and isinstance(value, str) else value
    if not isinstance(stops, list):
        raise rule(f"is {shown(stops)}; it must hold up to {MAX_STOPS} strings")
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


def _check_guided_json(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict | str):
        raise rule(f"is {shown(value)}; it must be a JSON schema, as an object or as text")
    try:
        schema = from_json(value, allow_inf_nan=False) if isinstance(value, str) else value
    except ValueError as error:
        raise rule(f"is not valid JSON: {error}") from None
    if not isinstance(schema, dict):
        raise rule("holds no JSON object; a JSON schema is one")
    return schema


def _all_tokens(value: Any) -> Any:
    """vLLM writes -1 for "all tokens", where the engine has 0."""
    return 0 if type(value) is int and value == -1 else value


_STOP_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
_STOPS_SCHEMA: Final = array(_STOP_TEXT, None, MAX_STOPS)
_BIAS_SCHEMA: Final = {
    "type": "object",
    "maxProperties": MAX_ENTRIES,
    "propertyNames": {"pattern": "^[0-9]+$"},
    "additionalProperties": {"type": "number", "minimum": BIAS.least, "maximum": BIAS.most},
}

Stops = Annotated[
    list[str],
    ReadBy(partial(_check_stops, or_one=True), any_of(_STOP_TEXT, _STOPS_SCHEMA)),
]
StopList = Annotated[list[str], ReadBy(_check_stops, _STOPS_SCHEMA)]
LogitBias = Annotated[dict[int, float], ReadBy(_check_logit_bias, _BIAS_SCHEMA)]
GuidedJson = Annotated[dict[str, Any], ReadBy(_check_guided_json, any_of({"type": "object"}, TEXT))]

Temperature = Annotated[float, Within(BOUNDS["temperature"])]
TopP = Annotated[float, Within(BOUNDS["top_p"])]
TopK = Annotated[
    int,
    Within(BOUNDS["top_k"]),
    BeforeValidator(_all_tokens),
    WithJsonSchema({"type": "integer", "minimum": -1}),
]
MaxTokens = Annotated[int, Within(BOUNDS["max_tokens"])]
Choices = Annotated[int, Within(Bound(1, MAX_CHOICES, f"between 1 and {MAX_CHOICES}"))]
Priority = Annotated[int, Within(Bound(-(2**31), 2**31 - 1, "a whole number of at most 32 bits"))]


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class JsonSchemaFormat(Strict):
    """A schema with its name. ``strict`` not true: keywords that cannot be enforced are passed over."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    definition: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


GuidedChoice = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(fail_fast=True, min_length=1, max_length=MAX_GUIDED_CHOICES)
]


AnyString = Annotated[str | None, no_effect("any string")]
MetadataStrings = Annotated[dict[str, str], Field(max_length=16)]
NOT_STORED: Final = no_effect("false only: answers are not stored")


class OpenAIFields(Strict):
    """What chat, completions and responses share."""

    model: str
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stream: bool | None = None
    # Extensions common elsewhere.
    seed: Annotated[int, Within(BOUNDS["seed"])] | None = None
    top_k: TopK | None = None
    min_p: Annotated[float, Within(BOUNDS["min_p"])] | None = None
    repetition_penalty: Annotated[float, Within(BOUNDS["repetition_penalty"])] | None = None
    priority: Priority | None = None
    user: AnyString = None
    metadata: Annotated[MetadataStrings | None, no_effect("an object of up to 16 strings")] = None
    service_tier: Annotated[Literal["auto", "default"] | None, no_effect("'auto' or 'default': there is one tier")] = (
        None
    )


class ConversationHints(Strict):
    """What chat and responses take without effect."""

    safety_identifier: AnyString = None
    prompt_cache_key: Annotated[str | None, no_effect("any string: prefixes are found by their content")] = None
    prompt_cache_retention: AnyString = None


class GenerationFields(OpenAIFields):
    """What chat and completions share."""

    fates: ClassVar[dict[str, Fate]] = {
        "stream_options.include_obfuscation": no_effect("true or false: streams carry no padding")
    }

    n: Choices | None = None
    stop: Stops | None = None
    presence_penalty: Annotated[float, Within(BOUNDS["presence_penalty"])] | None = None
    frequency_penalty: Annotated[float, Within(BOUNDS["frequency_penalty"])] | None = None
    logit_bias: LogitBias | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    # Extensions common elsewhere.
    min_tokens: Annotated[int, Within(BOUNDS["min_tokens"])] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[int], Field(fail_fast=True, max_length=MAX_ENTRIES)] | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    guided_json: GuidedJson | None = None
    guided_regex: Annotated[str, Field(min_length=1)] | None = None
    guided_choice: GuidedChoice | None = None
    guided_grammar: Annotated[str, Field(min_length=1)] | None = None
    prompt_logprobs: Annotated[int, Within(BOUNDS["prompt_logprobs"])] | None = None
    store: Annotated[Literal[False] | None, NOT_STORED] = None


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
