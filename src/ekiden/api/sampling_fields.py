"""From a request's fields to the engine's :class:`SamplingParams` and :class:`Request`, defaults filled in."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from ekiden.api.auth import tenant_of
from ekiden.api.context import ApiContext
from ekiden.api.errors import invalid, shown
from ekiden.api.identity import EXTERNAL_ID, REQUEST_ID, TRACEPARENT
from ekiden.api.prompts import Prompt
from ekiden.api.schemas import MAX_REQUESTS, GenerationFields
from ekiden.state.request import DEFAULT_TENANT, Request
from ekiden.state.sampling_params import Grammar, InvalidSamplingParams, SamplingParams, validate

DEADLINE_HEADER: Final = "x-request-deadline-ms"
FINISH_REASONS_HEADER: Final = "x-ekiden-finish-reasons"
"""``extended``: an answer cut short comes with ``finish_reason`` abort, error or deadline in place of an error."""

_SEED_RANGE: Final = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP call: when it came, when it must end, whose it is, and what its headers ask for."""

    request_id: str
    arrival_time: float
    created: int
    deadline: float | None
    extended_finish_reasons: bool
    tenant: str = DEFAULT_TENANT
    external_id: str | None = None
    traceparent: str | None = None


def read_call(context: ApiContext, scope: Scope) -> Call:
    """The call's times and headers. Raises :class:`ApiError` 400 for a header that cannot work, and 503 while no new
    work is taken."""
    context.check_open()
    headers = Headers(scope=scope)
    now = time.monotonic()
    limits = [context.config.limits.request_timeout]
    text = headers.get(DEADLINE_HEADER)
    if text is not None:
        if not (text.isascii() and text.isdecimal() and 1 <= int(text[:20]) <= 10**12):
            raise invalid(
                DEADLINE_HEADER, f"{DEADLINE_HEADER} is {shown(text)}; it must be a positive number of milliseconds."
            )
        limits.append(int(text) / 1000)
    seconds = min((limit for limit in limits if limit is not None), default=None)
    return Call(
        request_id=scope[REQUEST_ID],
        arrival_time=now,
        created=int(time.time()),
        deadline=None if seconds is None else now + seconds,
        extended_finish_reasons=headers.get(FINISH_REASONS_HEADER) == "extended",
        tenant=tenant_of(scope, context.config.server.tenant_header),
        external_id=scope.get(EXTERNAL_ID),
        traceparent=scope.get(TRACEPARENT),
    )


def build_sampling(
    context: ApiContext,
    fields: GenerationFields,
    *,
    max_tokens: tuple[str, int | None],
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    grammar: Grammar | None = None,
) -> SamplingParams:
    """Sampling values with defaults filled in, checked; ``max_tokens`` is the field's name and value.

    ``prompt_logprobs`` takes the place of the field of that name.
    """
    name, limit = max_tokens
    if prompt_logprobs is None:
        prompt_logprobs = fields.prompt_logprobs
    if fields.stream and fields.prompt_logprobs is not None:
        raise invalid("prompt_logprobs", "prompt_logprobs cannot be streamed; leave out stream, or use echo.")
    defaults = context.defaults

    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    top_k = defaults.top_k if fields.top_k is None else fields.top_k
    params = SamplingParams(
        temperature=given(fields.temperature, defaults.temperature),
        top_p=given(fields.top_p, defaults.top_p),
        top_k=max(top_k, 0),
        min_p=given(fields.min_p, defaults.min_p),
        seed=fields.seed,
        max_tokens=defaults.max_tokens if limit is None else limit,
        min_tokens=fields.min_tokens or 0,
        stop=tuple(fields.stop or ()),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        include_stop_str_in_output=bool(fields.include_stop_str_in_output),
        ignore_eos=bool(fields.ignore_eos),
        presence_penalty=given(fields.presence_penalty, defaults.presence_penalty),
        frequency_penalty=given(fields.frequency_penalty, defaults.frequency_penalty),
        repetition_penalty=given(fields.repetition_penalty, defaults.repetition_penalty),
        logit_bias=fields.logit_bias or {},
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar,
    )
    try:
        validate(params, vocab_size=context.engine.card.vocab_size)
    except InvalidSamplingParams as error:
        raise invalid(name if error.param == "max_tokens" else error.param, f"{error}.") from None
    return params


def check_stream_options(fields: GenerationFields) -> bool:
    """True when the client wants a usage chunk. Raises when ``stream_options`` comes without ``stream``."""
    if fields.stream_options is None:
        return False
    if not fields.stream:
        raise invalid("stream_options", "stream_options is given without stream; it is allowed only with stream: true.")
    return bool(fields.stream_options.include_usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One of the answers of a call: ``index`` is its place among the choices."""

    index: int
    prompt: Prompt
    prompt_index: int
    request: Request
    shown: frozenset[int] = frozenset()
    """Special tokens that belong to the text, because they mark tool calls."""


def build_children(
    context: ApiContext,
    call: Call,
    prompts: list[Prompt],
    params: SamplingParams,
    fields: GenerationFields,
    *,
    best_of: int | None = None,
) -> list[Child]:
    """Prompt i's answer j is choice ``i * n + j``, seeded with ``seed + j``. ``best_of`` takes the place of n."""
    n = best_of or fields.n or 1
    total = len(prompts) * n
    if total > MAX_REQUESTS:
        param = "best_of" if best_of is not None else "n" if n > 1 else "prompt"
        raise invalid(
            param, f"{len(prompts)} prompts with {n} each are {total} answers; at most {MAX_REQUESTS} are allowed."
        )
    children: list[Child] = []
    for prompt_index, prompt in enumerate(prompts):
        sampling = _within_context(context, params, len(prompt.token_ids))
        for j in range(n):
            index = prompt_index * n + j
            request = Request(
                request_id=call.request_id if total == 1 else f"{call.request_id}-{index}",
                prompt_token_ids=prompt.token_ids,
                sampling=_with_seed(sampling, j),
                arrival_time=call.arrival_time,
                tenant=call.tenant,
                priority=fields.priority or 0,
                deadline=call.deadline,
                external_id=call.external_id,
                traceparent=call.traceparent,
            )
            children.append(Child(index=index, prompt=prompt, prompt_index=prompt_index, request=request))
    return children


def _within_context(context: ApiContext, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
    """More than what is left of the context means all that is left, which the engine knows best."""
    room = context.engine.card.max_model_len - num_prompt_tokens
    changes: dict[str, int | None] = {}
    if params.max_tokens is not None and params.max_tokens >= room:
        changes["max_tokens"] = None
    if params.min_tokens > room:
        changes["min_tokens"] = room
    return _replaced(params, changes) if changes else params


def _with_seed(params: SamplingParams, offset: int) -> SamplingParams:
    if params.seed is None or offset == 0:
        return params
    # Seeds are 64-bit: past the largest comes the smallest.
    seed = (params.seed + offset + _SEED_RANGE // 2) % _SEED_RANGE - _SEED_RANGE // 2
    return _replaced(params, {"seed": seed})


def _replaced(params: SamplingParams, changes: Mapping[str, int | None]) -> SamplingParams:
    values = {name: getattr(params, name) for name in params.__struct_fields__}
    return SamplingParams(**{**values, **changes})
