"""What the four doors share: from a request's bytes to a neutral call, its engine requests, and the answer.

A door is a table (:class:`Door`): the model of its body, how that becomes a :class:`Call`, and what writes the answer
in the door's own shape. Whatever is refused on the way, before the engine has the request, is noted with the engine,
so that the ledger explains it like every other request.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Final, Generic, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ekiden.api.asgi import DirectResponse, JsonBytes
from ekiden.api.auth import tenant_of
from ekiden.api.body_limit import read_json_body
from ekiden.api.call import Call, Conversation, Embedding, Origin, Pairs
from ekiden.api.errors import (
    ApiError,
    client_left,
    internal,
    invalid,
    model_not_found,
    no_embeddings,
    refusal_of,
)
from ekiden.api.generation import AnswerWriter, Child, Generation, WholeWriter, usage_of
from ekiden.api.ignored import IgnoredFields
from ekiden.api.prompts import Prompt, chat_prompt, pair_prompts, text_prompts, without_effect
from ekiden.api.schema_base import Strict, parse
from ekiden.api.structured import check_grammar
from ekiden.api.tools.plan import ToolPlan, plan_tools
from ekiden.config import LimitsConfig
from ekiden.engine.interface import ModelCard
from ekiden.models.tokenizer import Tokenizer
from ekiden.state.request import Reading, RefusedCall
from ekiden.state.sampling_params import InvalidSamplingParams, SamplingParams, validate

Fields = TypeVar("Fields", bound=Strict)
Understood = TypeVar("Understood")
Writer = TypeVar("Writer", bound=WholeWriter, covariant=True)


INLINE_BYTES: Final = 64 * 1024
"""Reading a body of this size takes about a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A call that is ready for the engine: its engine requests, and what writing the answers needs."""

    origin: Origin
    call: Call
    children: list[Child]
    plan: ToolPlan | None
    card: ModelCard
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Door(Generic[Fields, Writer]):
    """``call`` raises :class:`ApiError` 400 for what cannot work, in the door's own field names. The ``writer`` of a
    door that streams is an :class:`AnswerWriter`.

    ``extended_finish_reasons``: the protocol has a place for the reasons of answers that were cut short.
    """

    fields: type[Fields]
    call: Callable[[Fields, SamplingParams], Call]
    writer: Callable[[Fields, Job], Writer]
    extended_finish_reasons: bool = False


@dataclass(slots=True, kw_only=True)
class Doors:
    """Answers calls. ``defaults`` are the sampling values for what a request leaves out; ``refuse_unknown``: a field
    that stands in no table is a 400."""

    generation: Generation
    limits: LimitsConfig
    tenant_header: str | None
    defaults: SamplingParams
    ignored: IgnoredFields
    refuse_unknown: bool

    async def answer(self, door: Door[Fields, AnswerWriter], request: HttpRequest) -> Response:
        """Answers a call, whole or streamed. Raises :class:`ApiError` before the first byte."""
        fields, job = await self.ready(door, request)
        writer, children, generation = door.writer(fields, job), job.children, self.generation
        if job.call.stream:
            return DirectResponse(partial(generation.stream, job.origin, children, writer, request.receive))
        answers = await generation.collect(job.origin, children, request.receive)
        thought = sum(answer.reasoning_tokens for answer in answers)
        return JsonBytes(writer.whole(answers, usage_of(children, [answer.finish for answer in answers], thought)))

    async def answer_whole(self, door: Door[Fields, WholeWriter], request: HttpRequest) -> Response:
        """Answers a call of a door that never streams. Raises :class:`ApiError`."""
        fields, job = await self.ready(door, request)
        answers = await self.generation.collect(job.origin, job.children, request.receive)
        usage = usage_of(job.children, [answer.finish for answer in answers])
        return JsonBytes(door.writer(fields, job).whole(answers, usage))

    async def ready(self, door: Door[Fields, Any], request: HttpRequest) -> tuple[Fields, Job]:
        """Read, parse and prepare a call; a refusal is noted with the engine."""
        scope = request.scope
        origin = Origin.of(scope)
        try:
            tenant = tenant_of(scope, self.tenant_header)
            origin = replace(origin, tenant=tenant)
            body = await self.read_body(request)
            origin = Origin.of(scope, tenant)  # its arrival is when its body is complete
            fields, call = await self._understood(body, partial(self._call, door, body))
            self.check_model(call.model)
            self.generation.flight.check_open()
            origin = origin.with_headers(scope, self.limits.request_timeout)
            if not door.extended_finish_reasons:
                origin = replace(origin, extended_finish_reasons=False)
            job = await self.prepare(origin, call)
            self.ignored.tell(scope, call.ignored)
            return fields, job
        except ApiError as error:
            self.note_refusal(origin, error)
            raise
        except ClientDisconnect:
            self.note_refusal(origin, client_left())
            raise
        except Exception:
            self.note_refusal(origin, internal(origin.request_id))
            raise

    async def read(self, model: type[Fields], request: HttpRequest, *, own: bool = False) -> Fields:
        """A request's body as ``model``. ``own``: of a route that only this server has, where an unknown field is a
        mistake."""
        body = await self.read_body(request)
        understand = partial(parse, model, body, refuse_unknown=own or self.refuse_unknown)
        fields, passed_over = await self._understood(body, understand)
        self.ignored.tell(request.scope, passed_over)
        return fields

    def _call(self, door: Door[Fields, Any], body: bytes) -> tuple[Fields, Call]:
        fields, passed_over = parse(door.fields, body, refuse_unknown=self.refuse_unknown)
        call = door.call(fields, self.defaults)
        call.ignored[:0] = passed_over
        return fields, call

    async def _understood(self, body: bytes, understand: Callable[[], Understood]) -> Understood:
        """What a body says; one of some size holds up no stream while it is read."""
        return understand() if len(body) <= INLINE_BYTES else await self.generation.text.off_loop(understand)

    async def read_body(self, request: HttpRequest) -> bytes:
        """A request's body within the limits of size and time; see :func:`read_json_body`."""
        limits = self.limits
        max_bytes = int(limits.max_body_mib * 2**20)
        return await read_json_body(request.scope, request.receive, max_bytes=max_bytes, seconds=limits.body_timeout)

    def check_model(self, name: str) -> None:
        """Raise :class:`ApiError` 404 for another model. The name is compared, and never used as a path or URL."""
        served = self.generation.engine.card.model_id
        if name != served:
            raise model_not_found(name, served)

    def note_refusal(self, origin: Origin, error: ApiError) -> None:
        """Have the engine record that the HTTP layer refused a call; without one the metrics alone count it."""
        request = origin.request(request_id=origin.request_id, prompt_token_ids=(), sampling=SamplingParams())
        refusal = refusal_of(error)
        if not self.generation.engine.note_refusal(RefusedCall(request=request, refusal=refusal)):
            self.generation.metrics.count_unrecorded(refusal.reason)

    async def prepare(self, origin: Origin, call: Call) -> Job:
        """Compile the grammar, check sampling and encode the prompts. Raises :class:`ApiError` 400."""
        text, card = self.generation.text, self.generation.engine.card
        _check_embedding(call.embedding, card)
        wanted, plan = call.answer_format, None
        if wanted is not None:
            await check_grammar(text, wanted.grammar, wanted.param)
        grammar = None if wanted is None else wanted.grammar
        if isinstance(call.prompt, Conversation):
            plan, grammar = await plan_tools(text, call.prompt, wanted)
        sampling = msgspec.structs.replace(call.sampling, grammar=grammar)
        try:
            validate(sampling, vocab_size=text.vocab_size, eos_token_ids=text.tokenizer.eos_token_ids)
        except InvalidSamplingParams as error:
            param = call.names.get(error.param, error.param) + error.at
            raise invalid(param, f"{param} {error.text}.") from None
        if isinstance(call.prompt, Conversation):
            call.ignored.extend(without_effect(text, call.prompt))
            prompts = [await chat_prompt(text, call.prompt, tools=None if plan is None else plan.tools)]
            if thinking := prompts[0].thinking:
                if grammar is not None:
                    grammar = msgspec.structs.replace(grammar, thinking=thinking)
                    await check_grammar(text, grammar, "tools" if wanted is None else wanted.param)
                sampling = msgspec.structs.replace(sampling, grammar=grammar, reasoning_marks=thinking)
        elif isinstance(call.prompt, Pairs):
            prompts = await pair_prompts(text, call.prompt)
        else:
            prompts = await text_prompts(text, call.prompt, answered=call.answered)
        children = _children(origin, call, prompts, sampling, _shown(call, plan, text.tokenizer), text.max_model_len)
        return Job(origin=origin, call=call, children=children, plan=plan, card=card, tokenizer=text.tokenizer)


def _check_embedding(wanted: Embedding | None, card: ModelCard) -> None:
    """Raise :class:`ApiError` 400 for a vector that this model does not have."""
    if wanted is None:
        return
    if card.hidden_size is None:
        raise no_embeddings(card.model_id)
    if wanted.dimensions is not None and wanted.dimensions > card.hidden_size:
        allowed = f"the vectors of {card.model_id} have {card.hidden_size} numbers, so it must be at most that"
        raise invalid("dimensions", f"dimensions is {wanted.dimensions}; {allowed}.")


def _shown(call: Call, plan: ToolPlan | None, tokenizer: Tokenizer) -> frozenset[int]:
    """The special tokens that belong to the text of the answers."""
    if call.shows_special_tokens:
        return tokenizer.special_ids
    return frozenset() if plan is None else plan.shown


def _children(
    origin: Origin, call: Call, prompts: list[Prompt], sampling: SamplingParams, shown: frozenset[int], context: int
) -> list[Child]:
    """Prompt i's answer j is choice ``i * n + j``, seeded with ``seed + j``."""
    alone = len(prompts) * call.n == 1
    children: list[Child] = []
    for index, (prompt_index, j) in enumerate(product(range(len(prompts)), range(call.n))):
        prompt = prompts[prompt_index]
        request = origin.request(
            request_id=origin.request_id if alone else f"{origin.request_id}-{index}",
            prompt_token_ids=prompt.token_ids,
            sampling=_sampling_of_choice(sampling, context - len(prompt.token_ids), j),
            priority=call.priority,
            deadline=origin.deadline,
            reading=_reading(call, prompt),
        )
        children.append(
            Child(
                index=index,
                prompt=prompt,
                prompt_index=prompt_index,
                request=request,
                shown=shown,
                shows_reasoning=call.shows_reasoning,
            )
        )
    return children


def _reading(call: Call, prompt: Prompt) -> Reading | None:
    if call.answered:
        return None
    pooling = None if call.embedding is None else call.embedding.pooling
    return Reading(pooling=pooling, scored_from=prompt.scored_from)


def _sampling_of_choice(params: SamplingParams, room: int, offset: int) -> SamplingParams:
    """A limit beyond the end of the context becomes None: the engine then stops at the end of the context."""
    changed: dict[str, int | None] = {}
    if params.max_tokens is not None and params.max_tokens >= room:
        changed["max_tokens"] = None
    if params.min_tokens > room:
        changed["min_tokens"] = room
    if params.seed is not None:
        # Seeds are signed 64-bit numbers and wrap around.
        changed["seed"] = (params.seed + offset + 2**63) % 2**64 - 2**63
    return msgspec.structs.replace(params, **changed)
