"""Runs the answers of one call, whole or streamed. Both routes share it; they differ in how a choice is written.

Each answer is one engine request read by one loop. A single answer runs in the call's own task; several run in tasks
of one group, so that the first failure, or the client's leaving, closes all their iterators and so aborts them.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol, TypeVar

from starlette.types import Receive, Send

from ekiden.api.context import ApiContext
from ekiden.api.errors import ApiError, ClientGone, engine_unavailable, internal, refused, unfinished
from ekiden.api.exchange import Exchange
from ekiden.api.sampling_fields import Call, Child
from ekiden.api.sse import KEEP_ALIVE, SseWriter
from ekiden.api.text_output import PLAIN_REASONS, Answer, Piece, WholeAnswer
from ekiden.engine.interface import EngineDied
from ekiden.models.text import IncrementalText
from ekiden.state.request import Finish

T = TypeVar("T")

logger = logging.getLogger(__name__)


class ChunkWriter(Protocol):
    """How one of the routes writes a stream."""

    def opening(self, child: Child) -> bytes:
        """What comes before the first token of an answer."""
        ...

    def piece(self, child: Child, piece: Piece) -> bytes:
        """The chunk for one update; empty when there is nothing to say."""
        ...

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The chunk with usage, or nothing when it was not asked for."""
        ...


async def pieces(context: ApiContext, call: Call, child: Child) -> AsyncGenerator[Piece, None]:
    """The answer as it comes; the last piece has its finish. Raises :class:`ApiError` for every other end."""
    sampling = child.request.sampling
    answer = Answer(
        IncrementalText(
            context.tokenizer,
            sampling.stop,
            sampling.include_stop_str_in_output,
            min_tokens=sampling.min_tokens,
            shown=child.shown,
        ),
        end_token_ids=context.tokenizer.eos_token_ids,
        keep_stop_token=sampling.include_stop_str_in_output,
        token_text=None if sampling.logprobs is None else context.token_text,
    )
    observe_gap = context.metrics.observe_gap
    last = 0.0
    request_id = child.request.request_id
    context.note_begin(call.request_id, request_id)
    try:
        updates = context.engine.generate(child.request)
        async with aclosing(updates):
            async for update in updates:
                if update.refusal is not None:
                    raise refused(update.refusal, context.retry_seconds())
                if update.token_ids:
                    now = time.monotonic()
                    if last:
                        gap = (now - last) / len(update.token_ids)
                        for _ in update.token_ids:
                            observe_gap(gap)
                    last = now
                finish = update.finish
                if finish is not None and finish.reason not in PLAIN_REASONS and not call.extended_finish_reasons:
                    raise unfinished(finish)
                yield answer.take(update)
                if finish is not None:
                    return
    except EngineDied:
        raise engine_unavailable() from None
    finally:
        context.note_end(call.request_id, request_id)
    # An iterator that ends without a terminal update is an engine that lost the request.
    raise engine_unavailable()


@asynccontextmanager
async def watched_client(context: ApiContext, receive: Receive) -> AsyncIterator[None]:
    """Watches the client while the answers are made; shutdown can end it."""
    watched = Exchange(receive)
    context.live.add(watched)
    try:
        async with watched:
            yield
    finally:
        context.live.discard(watched)


async def _all(works: list[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; the first failure ends the others and is raised as itself."""
    if len(works) == 1:
        return [await works[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def collect(context: ApiContext, call: Call, children: list[Child], receive: Receive) -> list[WholeAnswer]:
    """Every answer, complete, in the order of the children."""

    async def whole(child: Child) -> WholeAnswer:
        texts: list[str] = []
        result = WholeAnswer()
        async with aclosing(pieces(context, call, child)) as stream:
            async for piece in stream:
                texts.append(piece.text)
                result.token_ids.extend(piece.token_ids)
                if piece.logprobs:
                    result.logprobs.extend(piece.logprobs)
                if piece.prompt_logprobs is not None:
                    result.prompt_logprobs = piece.prompt_logprobs
                result.cumulative_logprob += piece.cumulative_logprob
                result.finish = piece.finish
        result.text = "".join(texts)
        return result

    async with watched_client(context, receive):
        return await _all([whole(child) for child in children])


async def stream(
    context: ApiContext,
    call: Call,
    children: list[Child],
    chunks: ChunkWriter,
    receive: Receive,
    send: Send,
    writer: SseWriter | None = None,
) -> None:
    """Every answer as server-sent events. Raises :class:`ApiError` when nothing was sent yet; later it is an event."""
    writer = writer or SseWriter(send)
    finishes: list[Finish | None] = [None] * len(children)
    alone = len(children) == 1
    failure: ApiError | None = None

    async def pump(child: Child) -> bytes:
        nonlocal failure
        try:
            return await flow(child)
        except ApiError as error:
            failure = error
            raise

    async def flow(child: Child) -> bytes:
        first = True
        async with aclosing(pieces(context, call, child)) as answer:
            async for piece in answer:
                data = chunks.piece(child, piece)
                if first:
                    first = False
                    data = chunks.opening(child) + data
                    if not alone and not writer.started:
                        # All answers enter the engine together: let a sibling's refusal come before the status line.
                        await asyncio.sleep(0)
                        if failure is not None:
                            raise failure
                if piece.finish is not None:
                    finishes[child.index] = piece.finish
                    if alone:
                        return data
                if data:
                    await writer.write(data)
        return b""

    try:
        async with watched_client(context, receive):
            silence = asyncio.create_task(_break_silence(writer, context.keep_alive_seconds))
            try:
                last = await _all([pump(child) for child in children])
            finally:
                silence.cancel()
        tail = chunks.usage(usage_of(children, finishes))
        await writer.close(b"".join(last) + tail)
    except ApiError as error:
        if not writer.started:
            raise
        await writer.fail(error)
    except ClientGone:
        raise
    except Exception:
        if not writer.started:
            raise
        # Our own fault after the first byte: the client is told in the stream, and the log has the story.
        logger.exception("request %s failed while it was streamed", call.request_id)
        await writer.fail(internal(call.request_id))


async def _break_silence(writer: SseWriter, seconds: float) -> None:
    """A comment whenever nothing was written for a while, so that no proxy takes the connection for dead."""
    while True:
        writer.wrote = False
        await asyncio.sleep(seconds)
        if not writer.wrote:
            await writer.write(KEEP_ALIVE)


def usage_of(children: Sequence[Child], finishes: Sequence[Finish | None]) -> dict[str, Any]:
    """Prompts count once, whatever ``n`` is; answers are summed."""
    firsts = {child.prompt_index: child for child in reversed(children)}.values()
    prompt_tokens = sum(len(child.prompt.token_ids) for child in firsts)
    cached = sum(finish.num_cached_tokens for child in firsts if (finish := finishes[child.index]) is not None)
    completion_tokens = sum(finish.num_output_tokens for finish in finishes if finish is not None)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
