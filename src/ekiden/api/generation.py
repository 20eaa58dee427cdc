"""Generates the answers of one call, whole or streamed. All doors share it; each writes answers in its own shape.

Each answer is one engine request read by one loop. A single answer runs in the call's own task; several run in tasks
of one group, so that the first failure, or the client's leaving, closes all their iterators and so aborts them.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send

from ekiden.api.call import Origin
from ekiden.api.errors import ApiError, ends_engine, engine_unavailable, internal, refused, unfinished
from ekiden.api.flight import Flight
from ekiden.api.metrics import ApiMetrics
from ekiden.api.prompts import Prompt
from ekiden.api.sse import SseWriter
from ekiden.api.text import ModelText
from ekiden.api.text_output import PLAIN_REASONS, Answer, Piece, joined
from ekiden.engine.interface import EndsEngine, Engine, EngineDied
from ekiden.state.containment import NOT_OF_ONE_REQUEST
from ekiden.state.request import Finish, FinishReason, RefusalReason, Request

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
    """Special tokens that belong to the text: they mark tool calls, or the client asked for all."""
    shows_reasoning: bool = True


class WholeWriter(Protocol):
    """Writes the answers of one call in the shape of a door."""

    def whole(self, answers: list[Piece], usage: dict[str, Any]) -> Mapping[str, Any]:
        """The response's body when nothing is streamed."""


class AnswerWriter(WholeWriter, Protocol):
    """Writes streams too. ``end`` comes after the last event of a stream; ``keep_alive`` is written where nothing was
    for a while."""

    end: bytes
    keep_alive: bytes

    def opening(self, child: Child, first: Piece) -> bytes:
        """What comes before the first piece of an answer."""

    def piece(self, child: Child, piece: Piece) -> bytes:
        """The events for one update; empty when the update adds nothing."""

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The event with usage, or nothing when it was not asked for."""

    def error(self, error: ApiError) -> bytes:
        """The event for an error after the first byte."""


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
        answer = Answer(self.text.tokenizer, child.request.sampling, child.shown, shows_reasoning=child.shows_reasoning)
        last = 0.0
        request_id = child.request.request_id
        try:
            begun = self.engine.generate(child.request)
        except EngineDied as error:
            self.metrics.count_unrecorded(RefusalReason.ENGINE_UNAVAILABLE)
            raise engine_unavailable(str(error)) from None
        self.flight.begin(origin.request_id, request_id)
        try:
            async with aclosing(begun) as updates:
                async for update in updates:
                    if update.refusal is not None:
                        raise refused(update.refusal, self._retry_seconds())
                    if update.token_ids:
                        now = time.monotonic()
                        if last:
                            gap = (now - last) / len(update.token_ids)
                            for _ in update.token_ids:
                                self.metrics.observe_gap(gap)
                        last = now
                    finish = update.finish
                    if finish and finish.reason not in PLAIN_REASONS:
                        given_up = finish.reason is FinishReason.ABSTAINED  # there is nothing of the answer to take
                        if given_up or not origin.extended_finish_reasons:
                            raise unfinished(finish)
                    yield answer.take(update)
                    if finish:
                        return
        except EndsEngine as error:
            raise ends_engine(str(error)) from None
        except EngineDied as error:
            raise engine_unavailable(str(error)) from None
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

    async def collect(self, origin: Origin, children: list[Child], receive: Receive) -> list[Piece]:
        """Every answer, complete, in the order of the children."""

        async def whole(child: Child) -> Piece:
            async with aclosing(self.pieces(origin, child)) as stream:
                return joined([piece async for piece in stream])

        async with self.flight.watch(receive):
            return await _all([whole(child) for child in children])

    async def stream(
        self, origin: Origin, children: list[Child], writer: AnswerWriter, receive: Receive, send: Send
    ) -> None:
        """Every answer as server-sent events. Raises :class:`ApiError` when nothing was sent yet; later it is an
        event."""
        events = SseWriter(send, writer.end)
        finishes: list[Finish | None] = [None] * len(children)
        thought = 0
        alone = len(children) == 1
        failure: ApiError | None = None

        async def pump(child: Child) -> bytes:
            nonlocal failure, thought
            first = True
            try:
                async with aclosing(self.pieces(origin, child)) as answer:
                    async for piece in answer:
                        data = writer.opening(child, piece) if first else b""
                        data += writer.piece(child, piece)
                        first = False
                        thought += piece.reasoning_tokens
                        if not alone and not events.started:
                            # All answers were submitted together: one that is refused must be told by the status.
                            await asyncio.sleep(0)
                            if failure is not None:
                                raise failure
                        if piece.finish is not None:
                            finishes[child.index] = piece.finish
                            if alone:
                                return data
                        if data:
                            await events.write(data)
            except ApiError as error:
                failure = error
                raise
            return b""

        try:
            async with self.flight.watch(receive):
                silence = asyncio.create_task(events.break_silence(self.keep_alive_seconds, writer.keep_alive))
                try:
                    last = await _all([pump(child) for child in children])
                finally:
                    silence.cancel()
            tail = writer.usage(usage_of(children, finishes, thought))
            await events.close(b"".join(last) + tail)
        except ApiError as error:
            if not events.started:
                raise
            await events.close(writer.error(error))
        except (ClientDisconnect, asyncio.CancelledError, *NOT_OF_ONE_REQUEST):
            raise
        except BaseException:  # a panic of a library in Rust is no Exception
            if not events.started:
                raise
            # A fault of the server after the first byte becomes an event of the stream; details are logged.
            logger.exception("request %s failed while it was streamed", origin.request_id)
            await events.close(writer.error(internal(origin.request_id)))


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


def usage_of(children: Sequence[Child], finishes: Sequence[Finish | None], thought: int = 0) -> dict[str, Any]:
    """Token counts of a call: each prompt counts once, whatever ``n`` is; answers are summed. ``thought`` of their
    tokens are reasoning, which is told of models that think."""
    firsts = {child.prompt_index: child for child in reversed(children)}.values()
    prompt_tokens = sum(len(child.prompt.token_ids) for child in firsts)
    cached = sum(finish.num_cached_tokens for child in firsts if (finish := finishes[child.index]) is not None)
    completion_tokens = sum(finish.num_output_tokens for finish in finishes if finish is not None)
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    if any(child.request.sampling.reasoning_marks for child in children):
        usage["completion_tokens_details"] = {"reasoning_tokens": thought}
    return usage
