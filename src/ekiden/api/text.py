"""What the HTTP process has of the model: tokenizer, chat template, grammars, and threads for long work on text."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ekiden.models.chat_template import ChatTemplate
from ekiden.models.template_worker import WORKERS
from ekiden.models.thinking import Marks
from ekiden.models.tokenizer import Tokenizer
from ekiden.sampling.structured import GrammarCompiler

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class ModelText:
    """``chat_template`` is None for a model without one: chat is then refused, completions work.

    ``template_defaults`` are variables of the template for what a request leaves out. ``reasoning`` is None for models
    that do not think.
    """

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    grammars: GrammarCompiler
    max_model_len: int
    vocab_size: int
    template_defaults: Mapping[str, Any] = field(default_factory=dict)
    reasoning: Marks | None = None
    # Two threads, so that a burst of huge prompts leaves the cores to the engine.
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="ekiden-text"))
    # Of their own, so that a template that takes long holds up no other text.
    _renderers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(WORKERS, thread_name_prefix="ekiden-template")
    )
    _max_token_bytes: int | None = None

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Run long work on a thread, so that streams and probes go on."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def rendered(self, render: Callable[[], str]) -> str:
        """Wait on a thread for what the chat template writes."""
        return await asyncio.get_running_loop().run_in_executor(self._renderers, render)

    async def max_token_bytes(self) -> int:
        """No token stands for more bytes of text than this; found when it is first needed."""
        if self._max_token_bytes is None:
            tokenizer = self.tokenizer
            self._max_token_bytes = await self.off_loop(
                lambda: max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))
            )
        return self._max_token_bytes
