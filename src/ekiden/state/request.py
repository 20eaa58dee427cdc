"""A request as it enters the engine, and every way in which it can end.

A request is immutable. It ends in exactly one terminal event: a refusal at intake, or a finish.
These values hold no cycles, so the garbage collector need not walk over them (``gc=False``): with many requests
waiting, that would hold up a step.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from ekiden.state.sampling_params import SamplingParams

DEFAULT_TENANT = "default"


class Carried(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a request brings from engines that ended while it was in flight. The next engine gives only what follows.

    ``token_ids`` has all tokens that its reader was given, the first of them at ``first_token_time``. ``ends`` counts
    those engines, and ``run_id`` names the run of the last one where that was recorded.
    """

    token_ids: tuple[int, ...] = ()
    first_token_time: float | None = None
    ends: int = 1
    run_id: str | None = None


class Pooling(StrEnum):
    """How the hidden states of a prompt become one vector."""

    MEAN = "mean"
    LAST = "last"


class Reading(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is wanted of a prompt that is only read. Such a request ends when its prompt is computed.

    ``pooling``: one vector of its hidden states. ``scored_from``: how likely its tokens were, from the one with this
    index on; the first token has nothing before it and cannot be scored.
    """

    pooling: Pooling | None = None
    scored_from: int | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One prompt for one answer, or a prompt that is only read. A call with ``n`` answers is ``n`` requests.

    ``arrival_time`` and ``deadline`` are seconds on the engine's monotonic clock, which all processes of one
    machine share. ``priority``: lower runs first.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival_time: float
    tenant: str = DEFAULT_TENANT
    priority: int = 0
    deadline: float | None = None
    external_id: str | None = None
    """The client's own ``x-request-id``. It is recorded and never used to look a request up."""
    traceparent: str | None = None
    """The W3C trace context of the call; the request's span becomes its child."""
    carried: Carried | None = None
    """Present when an engine has ended while it was in flight."""
    reading: Reading | None = None
    """None for a request that generates tokens."""
    takes_partial: bool = False
    """Its client takes what there is of the answer when the deadline comes, so a first token in time is enough."""

    @property
    def first_needed(self) -> int:
        """The first position of the prompt whose hidden state or logits are wanted, beside its last one: of the
        positions before it, keys and values are enough, whoever computed them."""
        reading, length = self.reading, len(self.prompt_token_ids)
        if reading is None:
            return length if self.sampling.prompt_logprobs is None else 0
        if reading.pooling is Pooling.MEAN:
            return 0
        return length if reading.scored_from is None else reading.scored_from - 1


class FinishReason(StrEnum):
    """Why an admitted request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    DEADLINE = "deadline"
    ABSTAINED = "abstained"
    """It waited until its deadline could no longer be met, so it was given up before it had a slot."""
    ERROR = "error"


class RefusalReason(StrEnum):
    """Why a request was not admitted."""

    INVALID = "invalid"
    DUPLICATE_ID = "duplicate_request_id"
    PROMPT_EMPTY = "prompt_empty"
    TOKEN_OUT_OF_VOCABULARY = "token_out_of_vocabulary"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    EXCEEDS_KV_CACHE = "exceeds_kv_cache"
    QUEUE_FULL_REQUESTS = "queue_full_requests"
    QUEUE_FULL_TOKENS = "queue_full_tokens"
    QUEUE_TOO_SLOW = "queue_too_slow"
    TENANT_QUEUE_FULL = "tenant_queue_full"
    TENANT_RATE = "tenant_rate"
    DEADLINE_TOO_SHORT = "deadline_too_short"
    """Its deadline could not be met by an engine that has nothing else to do."""
    DEADLINE_TOO_BUSY = "deadline_too_busy"
    """Its deadline cannot be met beside what the engine has to do already."""
    DRAINING = "draining"
    INTERNAL_ERROR = "internal_error"
    """The engine's own work failed while it took the request in."""
    # Only the HTTP layer gives the following reasons.
    INVALID_HTTP = "invalid_http"
    INVALID_JSON = "invalid_json"
    UNSUPPORTED = "unsupported"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    MODEL_NOT_FOUND = "model_not_found"
    BODY_TOO_LARGE = "body_too_large"
    BODY_TIMEOUT = "body_timeout"
    CLIENT_LEFT = "client_left"
    """The client left before its request was whole."""
    INVALID_API_KEY = "invalid_api_key"
    INSUFFICIENT_SCOPE = "insufficient_scope"
    ENGINE_UNAVAILABLE = "engine_unavailable"


Quantiles = tuple[float, float, float]
"""Seconds from now, as p10, p50 and p90."""


class Estimate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When a request with a deadline would have its first token and its end, seen from one moment.

    ``left``: seconds from that moment to the deadline. ``wait``: until it has a slot. ``alone``: the p10 of what it
    needs in time, on an engine that has nothing else to do; only of one that cannot meet its deadline.
    """

    left: float
    wait: Quantiles
    first_token: Quantiles
    end: Quantiles
    alone: float | None = None

    def least(self, *, partial: bool) -> float:
        """The p10 of what must come before the deadline: the end, or the first token of one who takes a part."""
        return self.first_token[0] if partial else self.end[0]


class Refusal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A refusal with its reason; ``param`` names the request field at fault, where one is.

    The same request may be accepted after ``retry_after`` seconds.
    """

    reason: RefusalReason
    message: str
    param: str | None = None
    retry_after: float | None = None
    by_door: bool = False
    """The HTTP layer refused the request; the engine never judged it and only records it."""
    estimate: Estimate | None = None
    """Why its deadline cannot be met, where that is the reason."""


class RefusedCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the HTTP layer refused, for the ledger. ``request`` holds what was known; its prompt is left empty."""

    request: Request
    refusal: Refusal


def check_prompt(
    token_ids: Sequence[int], *, vocab_size: int, max_model_len: int, param: str = "prompt", answered: bool = True
) -> Refusal | None:
    """Why a prompt can never be answered; None for one that can. ``param`` is the field that holds it.

    ``answered``: the context must have room for a token after it.
    """
    if not token_ids:
        message = f"{param} has no tokens; it must have at least one"
        return Refusal(reason=RefusalReason.PROMPT_EMPTY, message=message, param=param)
    if refusal := check_vocabulary(token_ids, vocab_size=vocab_size, param=param):
        return refusal
    if len(token_ids) + answered > max_model_len:
        return prompt_too_long(param, str(len(token_ids)), max_model_len, answered=answered)
    return None


def check_vocabulary(token_ids: Sequence[int], *, vocab_size: int, param: str = "prompt") -> Refusal | None:
    """The first token id that the model does not have, as a refusal; None when it has all."""
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return None
    index = next(index for index, token in enumerate(token_ids) if not 0 <= token < vocab_size)
    message = f"{param}[{index}] is {token_ids[index]}; token ids are between 0 and {vocab_size - 1}"
    return Refusal(reason=RefusalReason.TOKEN_OUT_OF_VOCABULARY, message=message, param=param)


def prompt_too_long(param: str, num_tokens: str, max_model_len: int, *, answered: bool = True) -> Refusal:
    """The refusal of a prompt that fills the context; ``answered`` as for :func:`check_prompt`."""
    both = f", prompt and answer together, so a prompt may have at most {max_model_len - 1}. Shorten the prompt"
    context = f"the context of this model is {max_model_len} tokens"
    return Refusal(
        reason=RefusalReason.CONTEXT_LENGTH_EXCEEDED,
        message=f"{param} has {num_tokens} tokens; {context}{both if answered else '. Shorten it'}",
        param=param,
    )


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Log-probabilities at one position: the chosen token's, and the highest ones as ``(token, logprob)``.

    ``rank`` is the token's place among all, from 1; it is counted for the tokens of prompts only.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int | None = None


class Finish(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The end of an admitted request. Times are seconds on the engine's clock; None means that the request
    never got so far."""

    reason: FinishReason
    stop_reason: str | int | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    arrival_time: float
    admitted_time: float | None
    first_token_time: float | None
    finish_time: float
    num_preemptions: int = 0
    message: str | None = None
    num_blocks: int = 0
    """KV blocks that it held at its end."""
    tenant: str = DEFAULT_TENANT
    estimate: Estimate | None = None
    """Why its deadline could no longer be met, where that is the reason."""


class RequestUpdate(msgspec.Struct, frozen=True, gc=False):
    """What one step did for one request: its new tokens, and the terminal event when there is one.

    Positional and without keywords because one is made for every token of every stream.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    finish: Finish | None = None
    refusal: Refusal | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """Comes with the first token when the client asked for it: one entry for each prompt token but the first.
    Of a reading: one for each scored token, with its end."""
    pooled: bytes | None = None
    """The vector of a reading that asked for one, with its end: 32-bit floats, lowest byte first."""

    @property
    def terminal(self) -> bool:
        return self.finish is not None or self.refusal is not None
