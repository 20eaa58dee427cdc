"""``POST /v1/chat/completions``."""

from typing import Any

from starlette.types import Receive, Scope, Send

from ekiden.api.context import ApiContext
from ekiden.api.conversation import prepare
from ekiden.api.generation import collect, stream, usage_of
from ekiden.api.responses import send_json
from ekiden.api.sampling_fields import Call, Child, check_stream_options, read_call
from ekiden.api.schema_base import parse
from ekiden.api.schemas import REFUSED, ChatRequest
from ekiden.api.sse import ChunkFrame, encode
from ekiden.api.text_output import Piece, TokenText, WholeAnswer, chat_logprobs, finish_fields, prompt_logprobs
from ekiden.api.tools.plan import ToolPlan
from ekiden.api.tools.reply import ReplyReader, chat_delta, chat_finish_fields, chat_message, read_whole


async def chat_completions(context: ApiContext, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a conversation, whole or streamed. Raises :class:`ApiError` before the first byte."""
    fields = parse(ChatRequest, await context.read_body(scope, receive), REFUSED)
    context.check_model(fields.model)
    call = read_call(context, scope)
    include_usage = check_stream_options(fields)
    talk = await prepare(context, call, fields)
    children, plan = talk.children, talk.plan
    return_ids = bool(fields.return_token_ids)
    if fields.stream:
        chunks = ChatChunks(context, call, children, plan, include_usage=include_usage, return_token_ids=return_ids)
        await stream(context, call, children, chunks, receive, send)
        return
    answers = await collect(context, call, children, receive)
    await send_json(send, _whole(context, call, children, answers, plan, return_ids))


def _head(context: ApiContext, call: Call, kind: str) -> dict[str, Any]:
    card = context.engine.card
    return {
        "id": f"chatcmpl-{call.request_id}",
        "object": kind,
        "created": call.created,
        "model": card.model_id,
        "system_fingerprint": card.fingerprint,
    }


def _whole(
    context: ApiContext,
    call: Call,
    children: list[Child],
    answers: list[WholeAnswer],
    plan: ToolPlan | None,
    return_ids: bool,
) -> dict[str, Any]:
    choices: list[dict[str, Any]] = []
    for child, answer in zip(children, answers, strict=True):
        wants = child.request.sampling.logprobs is not None
        reply = read_whole(plan, answer.text)
        choice = {
            "index": child.index,
            "message": chat_message(reply),
            "logprobs": chat_logprobs(context.token_text, answer.logprobs) if wants else None,
            **chat_finish_fields(answer.finish, bool(reply.calls)),
        }
        if return_ids:
            choice["token_ids"] = answer.token_ids
        choices.append(choice)
    response = _head(context, call, "chat.completion") | {
        "choices": choices,
        "usage": usage_of(children, [answer.finish for answer in answers]),
    }
    if return_ids:
        response["prompt_token_ids"] = children[0].prompt.token_ids
    asked, known = children[0].request.sampling.prompt_logprobs, answers[0].prompt_logprobs
    if asked is not None and known is not None:
        response["prompt_logprobs"] = prompt_logprobs(context.token_text, children[0].prompt.token_ids, known, asked)
    return response


class ChatChunks:
    """The chunks of a streamed chat answer."""

    def __init__(
        self,
        context: ApiContext,
        call: Call,
        children: list[Child],
        plan: ToolPlan | None,
        *,
        include_usage: bool,
        return_token_ids: bool,
    ) -> None:
        self._readers = None if plan is None else {child.index: ReplyReader(plan) for child in children}
        self._token_text: TokenText = context.token_text
        self._include_usage = include_usage
        self._return_ids = return_token_ids
        self._frame = ChunkFrame(_head(context, call, "chat.completion.chunk"), include_usage=include_usage)
        self._starts = [self._frame.prefix + b'{"index":%d,"delta":{"content":' % child.index for child in children]
        self._end = b'},"logprobs":null,"finish_reason":null}' + self._frame.suffix

    def opening(self, child: Child) -> bytes:
        choice: dict[str, Any] = {
            "index": child.index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        if self._return_ids:
            choice["prompt_token_ids"] = child.prompt.token_ids
        return self._frame.choice(choice)

    def piece(self, child: Child, piece: Piece) -> bytes:
        if self._readers is not None:
            return self._read(self._readers[child.index], child, piece)
        if piece.finish is None and not piece.logprobs and not self._return_ids:
            if not piece.text:
                return b""
            return self._starts[child.index] + encode(piece.text) + self._end
        choice: dict[str, Any] = {
            "index": child.index,
            "delta": {"content": piece.text} if piece.text else {},
            "logprobs": chat_logprobs(self._token_text, piece.logprobs) if piece.logprobs else None,
            **finish_fields(piece.finish),
        }
        if self._return_ids:
            choice["token_ids"] = piece.token_ids
        return self._frame.choice(choice)

    def _read(self, reader: ReplyReader, child: Child, piece: Piece) -> bytes:
        """The chunks of a piece that may hold tool calls: one for each part; what belongs to tokens is in the last."""
        deltas = [chat_delta(event) for event in reader.read(piece.text, last=piece.finish is not None)]
        if piece.finish is not None or not deltas:
            if piece.finish is None and not piece.logprobs and not self._return_ids:
                return b""
            deltas.append({})
        choices: list[dict[str, Any]] = [
            {"index": child.index, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas
        ]
        last = choices[-1]
        last |= chat_finish_fields(piece.finish, reader.called)
        if piece.logprobs:
            last["logprobs"] = chat_logprobs(self._token_text, piece.logprobs)
        if self._return_ids:
            last["token_ids"] = piece.token_ids
        return b"".join(self._frame.choice(choice) for choice in choices)

    def usage(self, usage: dict[str, Any]) -> bytes:
        return self._frame.usage(usage) if self._include_usage else b""
