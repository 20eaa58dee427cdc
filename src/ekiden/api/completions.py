"""``POST /v1/completions``: text that goes on from a prompt, for one prompt or a batch of them."""

from typing import Any

from starlette.types import Receive, Scope, Send

from ekiden.api.context import ApiContext
from ekiden.api.errors import invalid
from ekiden.api.generation import collect, stream, usage_of
from ekiden.api.prompts import completion_prompts
from ekiden.api.responses import send_json
from ekiden.api.sampling_fields import Call, Child, build_children, build_sampling, check_stream_options, read_call
from ekiden.api.schema_base import parse
from ekiden.api.schemas import REFUSED, CompletionRequest
from ekiden.api.sse import ChunkFrame, SseWriter, encode
from ekiden.api.structured import request_grammar
from ekiden.api.text_output import CompletionLogprobs, Piece, TokenEntry, WholeAnswer, finish_fields, prompt_logprobs
from ekiden.state.request import Finish, FinishReason, TokenLogprobs


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
    picks = fields.best_of is not None and fields.best_of > (fields.n or 1)
    params = build_sampling(
        context,
        fields,
        max_tokens=("max_tokens", limit),
        logprobs=0 if picks and fields.logprobs is None else fields.logprobs,
        prompt_logprobs=_asked_of_prompt(fields),
        grammar=grammar,
    )
    prompts = await completion_prompts(context, fields.prompt, echo=echo)
    children = build_children(context, call, prompts, params, fields, best_of=fields.best_of)
    form = _Form(context, call, children, fields)
    if echo_only:
        known = params.prompt_logprobs is not None
        answers = await collect(context, call, children, receive) if known else [WholeAnswer() for _ in children]
        answers = [_without_answer(child, answer, call) for child, answer in zip(children, answers, strict=True)]
        if fields.stream:
            await _stream_echo(children, answers, CompletionChunks(form, include_usage=include_usage), send)
            return
    elif fields.stream:
        await stream(context, call, children, CompletionChunks(form, include_usage=include_usage), receive, send)
        return
    else:
        answers = await collect(context, call, children, receive)
    usage = usage_of(children, [answer.finish for answer in answers])
    if picks:
        answers = _best(answers, fields.best_of or 1, fields.n or 1)
        form.children = [child for child in children if child.index % (fields.best_of or 1) < (fields.n or 1)]
    await send_json(send, form.whole(answers, usage))


def _check_fields(fields: CompletionRequest, *, echo: bool) -> None:
    if fields.max_tokens == 0 and not echo:
        raise invalid("max_tokens", "max_tokens is 0; it must be at least 1, or come with echo: true.")
    n, best_of = fields.n or 1, fields.best_of
    if best_of is not None and best_of < n:
        raise invalid("best_of", f"best_of is {best_of}; it must be at least n, which is {n}.")
    if best_of is not None and best_of > n and fields.stream:
        raise invalid("best_of", f"best_of is {best_of}; what is streamed cannot be chosen from, so it must equal n.")


def _asked_of_prompt(fields: CompletionRequest) -> int | None:
    """How many alternatives to know of for each token of the prompt: for ``echo``, ``prompt_logprobs``, or both."""
    asked = [fields.prompt_logprobs, fields.logprobs if fields.echo else None]
    return max((count for count in asked if count is not None), default=None)


def _best(answers: list[WholeAnswer], best_of: int, n: int) -> list[WholeAnswer]:
    """For each prompt the ``n`` likeliest of its ``best_of`` answers, likeliest first, ties in their order.

    How likely is the sum over all its tokens, the one that ended it included.
    """
    chosen: list[WholeAnswer] = []
    for start in range(0, len(answers), best_of):
        group = answers[start : start + best_of]
        chosen += sorted(group, key=lambda answer: -answer.cumulative_logprob)[:n]
    return chosen


def _without_answer(child: Child, answer: WholeAnswer, call: Call) -> WholeAnswer:
    """What is left of a call that asks for the prompt only."""
    return WholeAnswer(finish=_echo_finish(child, call.arrival_time), prompt_logprobs=answer.prompt_logprobs)


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


async def _stream_echo(
    children: list[Child], answers: list[WholeAnswer], chunks: "CompletionChunks", send: Send
) -> None:
    writer = SseWriter(send)
    for child, answer in zip(children, answers, strict=True):
        last = chunks.piece(child, Piece(finish=answer.finish, prompt_logprobs=answer.prompt_logprobs))
        await writer.write(chunks.opening(child) + last)
    await writer.close(chunks.usage(usage_of(children, [answer.finish for answer in answers])))


class _Form:
    """How this call's choices look."""

    def __init__(self, context: ApiContext, call: Call, children: list[Child], fields: CompletionRequest) -> None:
        self.children = children
        self.echo = bool(fields.echo)
        self.return_ids = bool(fields.return_token_ids)
        self._token_text = context.token_text
        self._num_top = fields.logprobs
        self._num_prompt_top = fields.prompt_logprobs
        card = context.engine.card
        self.head: dict[str, Any] = {
            "id": f"cmpl-{call.request_id}",
            "object": "text_completion",
            "created": call.created,
            "model": card.model_id,
            "system_fingerprint": card.fingerprint,
        }
        self._logprobs = [CompletionLogprobs(context.token_text) for _ in children]

    def prompt(self, child: Child, known: tuple[TokenLogprobs, ...] | None) -> dict[str, Any] | None:
        """The ``logprobs`` of a prompt that is given back, where they were asked for."""
        if not self.echo or self._num_top is None or known is None:
            return None
        tokens, text = child.prompt.token_ids, child.prompt.text
        return self._logprobs[child.index].build_prompt(tokens, text, known, self._num_top)

    def answer(self, child: Child, entries: list[TokenEntry]) -> dict[str, Any] | None:
        """The ``logprobs`` of a piece of an answer, where they were asked for."""
        return None if self._num_top is None else self._logprobs[child.index].build(entries)

    def whole(self, answers: list[WholeAnswer], usage: dict[str, Any]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        for index, (child, answer) in enumerate(zip(self.children, answers, strict=True)):
            of_prompt, logprobs = self.prompt(child, answer.prompt_logprobs), self.answer(child, answer.logprobs)
            if of_prompt is not None and logprobs is not None:
                logprobs = {key: of_prompt[key] + logprobs[key] for key in logprobs}
            choice = {
                "index": index,
                "text": (child.prompt.text if self.echo else "") + answer.text,
                "logprobs": logprobs,
                **finish_fields(answer.finish),
            }
            if self.return_ids:
                choice["token_ids"] = answer.token_ids
                choice["prompt_token_ids"] = child.prompt.token_ids
            if self._num_prompt_top is not None and answer.prompt_logprobs is not None:
                choice["prompt_logprobs"] = prompt_logprobs(
                    self._token_text, child.prompt.token_ids, answer.prompt_logprobs, self._num_prompt_top
                )
            choices.append(choice)
        return self.head | {"choices": choices, "usage": usage}


class CompletionChunks:
    """The chunks of streamed completions."""

    def __init__(self, form: _Form, *, include_usage: bool) -> None:
        self._form = form
        self._include_usage = include_usage
        self._frame = ChunkFrame(form.head, include_usage=include_usage)
        self._starts = [self._frame.prefix + b'{"index":%d,"text":' % child.index for child in form.children]
        self._of_prompt: dict[int, dict[str, Any] | None] = {}
        self._end = b',"logprobs":null,"finish_reason":null}' + self._frame.suffix

    def opening(self, child: Child) -> bytes:
        if not self._form.echo and not self._form.return_ids:
            return b""
        text = child.prompt.text if self._form.echo else ""
        logprobs = self._of_prompt.pop(child.index, None)
        choice: dict[str, Any] = {"index": child.index, "text": text, "logprobs": logprobs, "finish_reason": None}
        if self._form.return_ids:
            choice["prompt_token_ids"] = child.prompt.token_ids
        return self._frame.choice(choice)

    def piece(self, child: Child, piece: Piece) -> bytes:
        if piece.prompt_logprobs is not None:
            # Comes with the first piece, and the opening is written after that is known.
            self._of_prompt[child.index] = self._form.prompt(child, piece.prompt_logprobs)
        if piece.finish is None and not piece.logprobs and not self._form.return_ids:
            if not piece.text:
                return b""
            return self._starts[child.index] + encode(piece.text) + self._end
        choice: dict[str, Any] = {
            "index": child.index,
            "text": piece.text,
            "logprobs": self._form.answer(child, piece.logprobs) if piece.logprobs else None,
            **finish_fields(piece.finish),
        }
        if self._form.return_ids:
            choice["token_ids"] = piece.token_ids
        return self._frame.choice(choice)

    def usage(self, usage: dict[str, Any]) -> bytes:
        return self._frame.usage(usage) if self._include_usage else b""
