"""Fields that several doors share: their types, checks and descriptions.

The bounds of what goes to the engine are the engine's own (:mod:`ekiden.state.sampling_params`).
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgspec
from pydantic import BeforeValidator, Field, WithJsonSchema

from ekiden.api.constraint_fields import ConstraintFields
from ekiden.api.errors import invalid, shown
from ekiden.api.hand_checks import rule
from ekiden.api.json_schema import any_of, array
from ekiden.api.schema_base import ReadBy, Strict, Within
from ekiden.api.shape import Fate, ignored, refused
from ekiden.state.sampling_params import (
    BIAS,
    BOUNDS,
    MAX_ENTRIES,
    MAX_STOP_LENGTH,
    MAX_STOPS,
    MOST_32,
    Bound,
    InvalidSamplingParams,
    SamplingParams,
    check_stops,
)

T = TypeVar("T")

MAX_CHOICES: Final = 128
"""Largest ``n``."""
MAX_MESSAGES: Final = 4096


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
    if value == []:  # what PHP makes of an empty object
        return {}
    if not isinstance(value, dict):
        raise rule(f"is {shown(value)}; it must be an object from token ids to numbers")
    if len(value) > MAX_ENTRIES:
        raise rule(f"has {len(value)} entries; at most {MAX_ENTRIES} are allowed")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not isinstance(key, str) or not key.isascii() or not key.removeprefix("-").isdecimal() or len(key) > 20:
            raise rule(f"has the key {shown(key)}; keys must be token ids")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not BIAS.allows(bias):
            raise rule(f"is {shown(bias)}; it must be a number {BIAS.words}", f"[{key}]")
        biases[int(key)] = float(bias)
    return biases


def _all_tokens(value: Any) -> Any:
    """vLLM writes -1 for "all tokens", where the engine has 0."""
    return 0 if type(value) is int and value == -1 else value


ANSWER_LENGTH: Final = BOUNDS["max_tokens"]._replace(least=1, words=f"between 1 and {BOUNDS['max_tokens'].most}")
"""Of ``max_tokens`` and its other names: an answer of no tokens comes only with ``echo``."""


def _read_num_predict(value: Any) -> int | None:
    """llama.cpp and Ollama write -1 for "no limit", and -2 for "until the context is full", which is the same here."""
    if type(value) is not int:
        raise rule(f"is {shown(value)}; it must be a whole number")
    if value in (-1, -2):
        return None
    if not ANSWER_LENGTH.allows(value):
        raise rule(f"is {shown(value)}; it must be -1 (no limit), or {ANSWER_LENGTH.words}")
    return value


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

Temperature = Annotated[float, Within(BOUNDS["temperature"])]
TopP = Annotated[float, Within(BOUNDS["top_p"])]
TopK = Annotated[
    int,
    Within(BOUNDS["top_k"]),
    BeforeValidator(_all_tokens),
    WithJsonSchema({"type": "integer", "minimum": -1, "maximum": BOUNDS["top_k"].most}),
]
MaxTokens = Annotated[int, Within(ANSWER_LENGTH)]
RepetitionPenalty = Annotated[float, Within(BOUNDS["repetition_penalty"])]
NumPredict = Annotated[int, ReadBy(_read_num_predict, {"type": "integer", "minimum": -2})]
Choices = Annotated[int, Within(Bound(1, MAX_CHOICES, f"between 1 and {MAX_CHOICES}"))]
Priority = Annotated[int, Within(Bound(-MOST_32 - 1, MOST_32, "a whole number of at most 32 bits"))]
Count = Annotated[int, Within(Bound(1, MOST_32, f"between 1 and {MOST_32}"))]
Seed = Annotated[int, Within(BOUNDS["seed"])]
MinP = Annotated[float, Within(BOUNDS["min_p"])]


class OllamaOptions(Strict):
    """Ollama's own form of the sampling fields. What stands outside it comes first."""

    fates: ClassVar[Mapping[str, Fate]] = {
        "num_ctx": ignored("the context is the server's: --max-model-len"),
        "num_keep": ignored("a prompt is taken whole"),
        "repeat_last_n": ignored("a penalty looks at the whole text"),
    } | dict.fromkeys(
        ("num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "numa"),
        ignored("the server decides how it runs"),
    )

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    stop: Stops | None = None
    num_predict: NumPredict | None = None
    repeat_penalty: RepetitionPenalty | None = None
    presence_penalty: Annotated[float, Within(BOUNDS["presence_penalty"])] | None = None
    frequency_penalty: Annotated[float, Within(BOUNDS["frequency_penalty"])] | None = None


class StreamOptions(Strict):
    """``continuous_usage_stats``: with ``include_usage``, every chunk tells the usage so far."""

    fates: ClassVar[Mapping[str, Fate]] = {"include_obfuscation": ignored("streams carry no padding")}

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


NOT_STORED: Final = "answers are not stored"
ONE_TIER: Final = "there is one tier"
FOUND_BY_CONTENT: Final = "prefixes are found by their content"


class OpenAIFields(Strict):
    """What chat, completions and responses share."""

    fates: ClassVar[Mapping[str, Fate]] = {
        "user": ignored("the tenant is that of the API key"),
        "metadata": ignored(NOT_STORED),
        "service_tier": ignored(ONE_TIER, fine=("auto", "default")),
    }
    unfolded = "extra_body"

    model: str
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stream: bool | None = None
    # Extensions common elsewhere.
    seed: Seed | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    priority: Priority | None = None


class ConversationHints(Strict):
    """What chat and responses take without effect."""

    fates: ClassVar[Mapping[str, Fate]] = {
        "safety_identifier": ignored("nothing is moderated here"),
        "prompt_cache_key": ignored(FOUND_BY_CONTENT),
        "prompt_cache_retention": ignored(FOUND_BY_CONTENT),
        "verbosity": ignored("the model has no verbosity setting", fine=("medium",)),
    }


class SamplingFields(Strict):
    """What every route takes beside :class:`OpenAIFields`: how tokens are chosen, and where an answer ends."""

    stop: Stops | None = None
    presence_penalty: Annotated[float, Within(BOUNDS["presence_penalty"])] | None = None
    frequency_penalty: Annotated[float, Within(BOUNDS["frequency_penalty"])] | None = None
    logit_bias: LogitBias | None = None
    # Extensions common elsewhere.
    min_tokens: Annotated[int, Within(BOUNDS["min_tokens"])] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[int], Field(fail_fast=True, max_length=MAX_ENTRIES)] | None = None
    include_stop_str_in_output: bool | None = None


class GenerationFields(OpenAIFields, SamplingFields, ConstraintFields):
    """What chat and completions share."""

    fates: ClassVar[Mapping[str, Fate]] = {
        "store": ignored(NOT_STORED, fine=(False,)),
        # vLLM's, which its bench and LMDeploy send too.
        "spaces_between_special_tokens": ignored("texts are joined as their tokens stand"),
        "detokenize": ignored("answers are text", fine=(True,)),
        "use_beam_search": refused("answers are sampled; n gives several", fine=(False,)),
        "length_penalty": ignored("it is for beam search"),
        "early_stopping": ignored("it is for beam search", fine=(False,)),
        "allowed_token_ids": refused("use a grammar", fine=([],)),
        "bad_words": refused("use logit_bias", fine=([],)),
        "logits_processors": refused("the server runs no code of a client's", fine=([],)),
        "truncate_prompt_tokens": refused("a prompt is taken whole"),
        "return_tokens_as_token_ids": refused("return_token_ids gives the ids", fine=(False,)),
        "cache_salt": refused("prefixes are shared by all; with --no-enable-prefix-caching none are"),
        "request_id": ignored("the header x-request-id is echoed and recorded"),
        # llama.cpp's and Ollama's.
        "cache_prompt": ignored(FOUND_BY_CONTENT, fine=(True,)),
        "id_slot": ignored("the scheduler chooses the slots"),
        "keep_alive": ignored("the model stays loaded"),
    }

    n: Choices | None = None
    stream_options: StreamOptions | None = None
    # Extensions common elsewhere.
    return_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: Annotated[int, Within(BOUNDS["prompt_logprobs"])] | None = None
    # Other names of the same.
    n_predict: NumPredict | None = None
    repeat_penalty: RepetitionPenalty | None = None
    min_new_tokens: Annotated[int, Within(BOUNDS["min_tokens"])] | None = None
    random_seed: Seed | None = None
    options: OllamaOptions | None = None


def check_streaming(fields: GenerationFields) -> bool:
    """True when the client wants a chunk with usage. Raises :class:`ApiError` 400 for what cannot be streamed."""
    if fields.stream and fields.prompt_logprobs is not None:
        raise invalid("prompt_logprobs", "prompt_logprobs cannot be streamed; leave out stream, or use echo.")
    if fields.stream_options is None:
        return False
    if not fields.stream:
        raise invalid("stream_options", "stream_options is given without stream; it is allowed only with stream: true.")
    return bool(fields.stream_options.include_usage)


_OTHER_NAMES: Final = {"repetition_penalty": "repeat_penalty", "min_tokens": "min_new_tokens", "seed": "random_seed"}


def first(*values: T | None) -> T | None:
    """The first value that was given."""
    return next((value for value in values if value is not None), None)


def generation_sampling(
    fields: GenerationFields, defaults: SamplingParams, *limits: int | None, **own: Any
) -> SamplingParams:
    """:func:`sampling_of` for fields that have other names; ``max_tokens`` is the first of ``limits``."""
    if (options := fields.options) is not None:
        limit, penalty = options.num_predict, options.repeat_penalty
        defaults = sampling_of(options, defaults, max_tokens=limit, repetition_penalty=penalty)
    for name, other in _OTHER_NAMES.items():
        own[name] = first(getattr(fields, name), getattr(fields, other))
    return sampling_of(fields, defaults, max_tokens=first(*limits, fields.n_predict), **own)


_SHARED_NAMES: Final = tuple(name for name in SamplingParams.__struct_fields__ if name not in ("grammar", "thinking"))
"""The engine's names that mean the same in a body. The two others are made of several fields, and a door may have
fields of those names that hold something else."""


def sampling_of(fields: Strict, defaults: SamplingParams, **own: Any) -> SamplingParams:
    """The values that ``fields`` has under the engine's names, over the defaults; ``own`` takes their place."""
    values = {name: getattr(fields, name, None) for name in _SHARED_NAMES} | own
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if v is not None}
    return msgspec.structs.replace(defaults, **given)
