"""Generates the answers of one call, whole or streamed. All doors share it; each writes answers in its own shape.

Each answer is one engine request read by one loop. A single answer runs in the call's own task; several run in tasks
of one group, so that the first failure, or the client's leaving, closes all their iterators and so aborts them.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from starlette.types import Receive

from ekiden.api.call import Origin
from ekiden.api.errors import ApiError, ClientGone, engine_unavailable, internal, refused, unfinished
from ekiden.api.flight import Flight
from ekiden.api.metrics import ApiMetrics
from ekiden.api.prompts import Prompt
from ekiden.api.sse import KEEP_ALIVE, SseWriter
from ekiden.api.text import ModelText
from ekiden.api.text_output import PLAIN_REASONS, Answer, Piece, WholeAnswer
from ekiden.engine.interface import Engine, EngineDied
from ekiden.models.text import IncrementalText
from ekiden.state.request import Finish, Request

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One of the answers of a call; ``index`` is its choice's index."""

    index: int
    prompt: Prompt
    prompt_index: int
    request: Request
    shown: frozenset[int] = frozenset()
    """Special tokens that belong to the text, because they mark tool calls."""


class ChunkWriter(Protocol):
    """How a door writes a stream."""

    def opening(self, child: Child) -> bytes:
        """The chunk before the first token of an answer."""
        ...

    def piece(self, child: Child, piece: Piece) -> bytes:
        """The chunk for one update; empty when the update adds nothing."""
        ...

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The chunk with usage, or nothing when it was not asked for."""
        ...


@dataclass(slots=True, kw_only=True)
class Generation:
    """The parts that generation needs."""

    engine: Engine
    text: ModelText
    flight: Flight
    metrics: ApiMetrics
    keep_alive_seconds: float = 15.0

    async def pieces(self, origin: Origin, child: Child) -> AsyncGenerator[Piece, None]:
        """The pieces of an answer; the last one has its finish. Raises :class:`ApiError` for every other end."""
        sampling, tokenizer, token_text = child.request.sampling, self.text.tokenizer, self.text.token_text
        answer = Answer(
            text=IncrementalText(
                tokenizer,
                sampling.stop,
                sampling.include_stop_str_in_output,
                min_tokens=sampling.min_tokens,
                shown=child.shown,
            ),
            end_token_ids=tokenizer.eos_token_ids,
            keep_stop_token=sampling.include_stop_str_in_output,
            token_text=None if sampling.logprobs is None else token_text,
        )
        observe_gap = self.metrics.observe_gap
        last = 0.0
        request_id = child.request.request_id
        self.flight.begin(origin.request_id, request_id)
        try:
            updates = self.engine.generate(child.request)
            async with aclosing(updates):
                async for update in updates:
                    if update.refusal is not None:
                        raise refused(update.refusal, self._retry_seconds())
                    if update.token_ids:
                        now = time.monotonic()
                        if last:
                            gap = (now - last) / len(update.token_ids)
                            for _ in update.token_ids:
                                observe_gap(gap)
                        last = now
                    finish = update.finish
                    cut = finish is not None and finish.reason not in PLAIN_REASONS
                    if finish is not None and cut and not origin.extended_finish_reasons:
                        raise unfinished(finish)
                    yield answer.take(update)
                    if finish is not None:
                        return
        except EngineDied:
            raise engine_unavailable() from None
        finally:
            self.flight.end(origin.request_id, request_id)
        # The iterator ended without a terminal update: the engine has lost the request.
        raise engine_unavailable()

    def _retry_seconds(self) -> int:
        """How long the queue will probably take, 1 to 60 seconds, from the engine's throughput so far."""
        stats = self.engine.stats()
        busy = stats.model_seconds_total + stats.sampling_seconds_total + stats.host_seconds_total
        done = stats.prompt_tokens_total + stats.generation_tokens_total
        if busy <= 0 or done <= 0:
            return 1
        return max(1, min(60, round(stats.waiting_tokens * busy / done)))

    async def collect(self, origin: Origin, children: list[Child], receive: Receive) -> list[WholeAnswer]:
        """Every answer, complete, in the order of the children."""

        async def whole(child: Child) -> WholeAnswer:
            texts: list[str] = []
            result = WholeAnswer()
            async with aclosing(self.pieces(origin, child)) as stream:
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

        async with self.flight.watch(receive):
            return await _all([whole(child) for child in children])

    async def stream(
        self, origin: Origin, children: list[Child], chunks: ChunkWriter, receive: Receive, writer: SseWriter
    ) -> None:
        """Every answer as server-sent events. Raises :class:`ApiError` when nothing was sent yet; later it is an
        event."""
        finishes: list[Finish | None] = [None] * len(children)
        alone = len(children) == 1
        failure: ApiError | None = None

        async def pump(child: Child) -> bytes:
            nonlocal failure
            first = True
            try:
                async with aclosing(self.pieces(origin, child)) as answer:
                    async for piece in answer:
                        data = chunks.piece(child, piece)
                        if first:
                            first = False
                            data = chunks.opening(child) + data
                            if not alone and not writer.started:
                                # All answers were submitted together: one that is refused must be told by the status.
                                await asyncio.sleep(0)
                                if failure is not None:
                                    raise failure
                        if piece.finish is not None:
                            finishes[child.index] = piece.finish
                            if alone:
                                return data
                        if data:
                            await writer.write(data)
            except ApiError as error:
                failure = error
                raise
            return b""

        try:
            async with self.flight.watch(receive):
                silence = asyncio.create_task(_break_silence(writer, self.keep_alive_seconds))
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
            # A fault of the server after the first byte becomes an event of the stream; details are logged.
            logger.exception("request %s failed while it was streamed", origin.request_id)
            await writer.fail(internal(origin.request_id))


async def _all(works: list[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order. The first failure cancels the others and is raised unwrapped."""
    if len(works) == 1:
        return [await works[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def _break_silence(writer: SseWriter, seconds: float) -> None:
    """Sends a comment whenever nothing was written for a while, so that no proxy closes the connection."""
    while True:
        writer.wrote = False
        await asyncio.sleep(seconds)
        if not writer.wrote:
            await writer.write(KEEP_ALIVE)


def usage_of(children: Sequence[Child], finishes: Sequence[Finish | None]) -> dict[str, Any]:
    """Token counts of a call: each prompt counts once, whatever ``n`` is; answers are summed."""
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
