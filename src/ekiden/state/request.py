"""A request as it enters the engine, and every way in which it can end.

A request is immutable. It ends in exactly one terminal event: a refusal at intake, or a finish.
These values hold no cycles, so the collector need not walk over them (``gc=False``): with many waiting it would hold up
a step.
"""

from enum import StrEnum

import msgspec

from ekiden.state.sampling_params import SamplingParams

DEFAULT_TENANT = "default"


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One prompt for one answer. A call with ``n`` answers is ``n`` requests.

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


class FinishReason(StrEnum):
    """Why an admitted request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    DEADLINE = "deadline"
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
    DRAINING = "draining"


class Refusal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A refusal with its reason; ``param`` names the request field at fault, where one is.

    ``retry_after`` is the measured or configured number of seconds after which the same request may be accepted.
    """

    reason: RefusalReason
    message: str
    param: str | None = None
    retry_after: float | None = None


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
    """Comes with the first token when the client asked for it: one entry for each prompt token but the first."""

    @property
    def terminal(self) -> bool:
        return self.finish is not None or self.refusal is not None
