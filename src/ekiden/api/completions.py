"""``POST /v1/completions``: text that goes on from a prompt, for one prompt or a batch of them."""

from typing import Any

from starlette.types import Receive, Scope, Send

from ekiden.api.context import ApiContext
from ekiden.api.errors import invalid, unsupported
from ekiden.api.generation import collect, stream, usage_of
from ekiden.api.prompts import completion_prompts
from ekiden.api.responses import send_json
from ekiden.api.sampling_fields import Call, Child, build_children, build_sampling, check_stream_options, read_call
from ekiden.api.schema_base import parse
from ekiden.api.schemas import REFUSED, CompletionRequest
from ekiden.api.sse import ChunkFrame, SseWriter, encode
from ekiden.api.structured import request_grammar
from ekiden.api.text_output import CompletionLogprobs, Piece, WholeAnswer, finish_fields
from ekiden.state.request import Finish, FinishReason


async def completions(context: ApiContext, scope: Scope, receive: Receive, send: Send) -> None:
    """Completes prompts, whole or streamed. Raises :class:`ApiError` before the first byte."""
    fields = parse(CompletionRequest, await context.read_body(scope, receive), REFUSED)
    context.check_model(fields.model)
    call = read_call(context, scope)
    include_usage = check_stream_options(fields)
    echo = bool(fields.echo)
    _check_fields(fields, echo=echo)
    echo_only = fields.max_tokens == 0
    limit = 1 if echo_only else fields.max_tokens
    grammar = await request_grammar(context, fields)
    params = build_sampling(
        context, fields, max_tokens=("max_tokens", limit), logprobs=fields.logprobs, grammar=grammar
    )
    prompts = await completion_prompts(context, fields.prompt, echo=echo)
    children = build_children(context, call, prompts, params, fields)
    form = _Form(context, call, children, echo=echo, return_ids=bool(fields.return_token_ids))
    if fields.stream:
        chunks = CompletionChunks(form, include_usage=include_usage)
        if echo_only:
            await _stream_echo(children, chunks, send, call.arrival_time)
        else:
            await stream(context, call, children, chunks, receive, send)
        return
    if echo_only:
        answers = [WholeAnswer(finish=_echo_finish(child, call.arrival_time)) for child in children]
    else:
        answers = await collect(context, call, children, receive)
    await send_json(send, form.whole(answers))


def _check_fields(fields: CompletionRequest, *, echo: bool) -> None:
    if fields.max_tokens == 0 and not echo:
        raise invalid("max_tokens", "max_tokens is 0; it must be at least 1, or come with echo: true.")
    if echo and fields.logprobs is not None:
        raise unsupported(
            "logprobs", "logprobs with echo asks for log-probabilities of the prompt, which are not supported yet."
        )
    if fields.best_of is not None and fields.best_of != (fields.n or 1):
        raise unsupported("best_of", f"best_of is {fields.best_of}; it must equal n, which is {fields.n or 1}.")


def _echo_finish(child: Child, now: float) -> Finish:
    """The end of a call that asks for the prompt only: nothing is computed."""
    return Finish(
        reason=FinishReason.LENGTH,
        stop_reason=None,
        num_prompt_tokens=len(child.prompt.token_ids),
        num_output_tokens=0,
        num_cached_tokens=0,
        arrival_time=now,
        admitted_time=None,
        first_token_time=None,
        finish_time=now,
    )


async def _stream_echo(children: list[Child], chunks: "CompletionChunks", send: Send, now: float) -> None:
    writer = SseWriter(send)
    finishes = [_echo_finish(child, now) for child in children]
    for child, finish in zip(children, finishes, strict=True):
        await writer.write(chunks.opening(child) + chunks.piece(child, Piece(finish=finish)))
    await writer.close(chunks.usage(usage_of(children, finishes)))


class _Form:
    """How this call's choices look."""

    def __init__(self, context: ApiContext, call: Call, children: list[Child], *, echo: bool, return_ids: bool) -> None:
        self.children = children
        self.echo = echo
        self.return_ids = return_ids
        card = context.engine.card
        self.head: dict[str, Any] = {
            "id": f"cmpl-{call.request_id}",
            "object": "text_completion",
            "created": call.created,
            "model": card.model_id,
            "system_fingerprint": card.fingerprint,
        }
        self.logprobs = [
            None if child.request.sampling.logprobs is None else CompletionLogprobs(context.token_text)
            for child in children
        ]

    def whole(self, answers: list[WholeAnswer]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        for child, answer, logprobs in zip(self.children, answers, self.logprobs, strict=True):
            choice = {
                "index": child.index,
                "text": (child.prompt.text if self.echo else "") + answer.text,
                "logprobs": None if logprobs is None else logprobs.build(answer.logprobs),
                **finish_fields(answer.finish),
            }
            if self.return_ids:
                choice["token_ids"] = answer.token_ids
                choice["prompt_token_ids"] = child.prompt.token_ids
            choices.append(choice)
        usage = usage_of(self.children, [answer.finish for answer in answers])
        return self.head | {"choices": choices, "usage": usage}


class CompletionChunks:
    """The chunks of streamed completions."""

    def __init__(self, form: _Form, *, include_usage: bool) -> None:
        self._form = form
        self._include_usage = include_usage
        self._frame = ChunkFrame(form.head, include_usage=include_usage)
        self._starts = [self._frame.prefix + b'{"index":%d,"text":' % child.index for child in form.children]
        self._end = b',"logprobs":null,"finish_reason":null}' + self._frame.suffix

    def opening(self, child: Child) -> bytes:
        if not self._form.echo and not self._form.return_ids:
            return b""
        text = child.prompt.text if self._form.echo else ""
        choice: dict[str, Any] = {"index": child.index, "text": text, "logprobs": None, "finish_reason": None}
        if self._form.return_ids:
            choice["prompt_token_ids"] = child.prompt.token_ids
        return self._frame.choice(choice)

    def piece(self, child: Child, piece: Piece) -> bytes:
        if piece.finish is None and not piece.logprobs and not self._form.return_ids:
            if not piece.text:
                return b""
            return self._starts[child.index] + encode(piece.text) + self._end
        logprobs = self._form.logprobs[child.index]
        choice: dict[str, Any] = {
            "index": child.index,
            "text": piece.text,
            "logprobs": logprobs.build(piece.logprobs) if logprobs is not None and piece.logprobs else None,
            **finish_fields(piece.finish),
        }
        if self._form.return_ids:
            choice["token_ids"] = piece.token_ids
        return self._frame.choice(choice)

    def usage(self, usage: dict[str, Any]) -> bytes:
        return self._frame.usage(usage) if self._include_usage else b""
