"""Chat answers from an engine in this process."""

import time
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import msgspec

from ekiden.build.engines import build_engine
from ekiden.build.model import default_sampling, load_described
from ekiden.cli.loading import describe_model
from ekiden.cli.prompting import chat_token_ids
from ekiden.config import Config
from ekiden.engine.async_engine import AsyncEngine
from ekiden.errors import UserError
from ekiden.models.text import IncrementalText
from ekiden.state.request import FinishReason, Request
from ekiden.state.sampling_params import InvalidSamplingParams, validate


class LocalAnswerer:
    """An :class:`ekiden.cli.chat.Answerer` over an :class:`AsyncEngine`."""

    def __init__(self, config: Config, options: dict[str, Any]) -> None:
        model = describe_model(config)
        self._description = model.description
        if self._description.chat_template is None:
            raise UserError("this model has no chat template; give one with --chat-template")
        self._sampling = msgspec.structs.replace(default_sampling(self._description), **options)
        try:
            validate(self._sampling, vocab_size=self._description.vocab_size)
        except InvalidSamplingParams as error:
            raise UserError(str(error)) from error
        parts = load_described(config, model)
        self._runner = parts.runner
        self._engine = AsyncEngine(build_engine(parts, config))
        self._ids = count()

    async def open(self) -> None:
        await self._engine.__aenter__()

    async def close(self) -> None:
        await self._engine.stop()
        self._runner.close()

    async def answer(self, messages: list[dict[str, str]]) -> AsyncIterator[str]:
        tokenizer = self._description.tokenizer
        token_ids = chat_token_ids(tokenizer, self._description.chat_template, messages)
        limit = self._engine.card.max_model_len
        if len(token_ids) >= limit:
            raise UserError(
                f"the conversation has {len(token_ids)} tokens and the context is {limit}; /clear starts afresh"
            )
        request = Request(
            request_id=f"chat-{next(self._ids)}",
            prompt_token_ids=tuple(token_ids),
            sampling=self._sampling,
            arrival_time=time.monotonic(),
        )
        text = IncrementalText(tokenizer)
        updates = self._engine.generate(request)
        try:
            async for update in updates:
                for token in update.token_ids:
                    if piece := text.feed(token).text:
                        yield piece
                if update.refusal is not None:
                    raise UserError(update.refusal.message)
                if update.finish is not None and update.finish.reason is FinishReason.ERROR:
                    raise UserError(update.finish.message or "the engine could not go on")
        finally:
            await updates.aclose()
        if rest := text.finish():
            yield rest
