"""What every route works with: the engine, the model's text side, the limits, and the live exchanges."""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from ekiden.api.errors import model_not_found
from ekiden.api.exchange import Exchange
from ekiden.api.metrics import ApiMetrics
from ekiden.api.text_output import TokenText
from ekiden.config import Config
from ekiden.engine.interface import Engine
from ekiden.models.chat_template import ChatTemplate
from ekiden.models.tokenizer import Tokenizer
from ekiden.state.sampling_params import SamplingParams

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class ApiContext:
    engine: Engine
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    """None for a model without one: chat is then refused, completions work."""
    config: Config
    defaults: SamplingParams
    """Sampling values for what a request leaves out."""
    metrics: ApiMetrics
    token_text: TokenText
    max_token_bytes: int | None = None
    """No token stands for more bytes of text than this; found when it is first needed."""
    keep_alive_seconds: float = 15.0
    draining: bool = False
    """True from the moment the server is asked to stop."""
    live: set[Exchange] = field(default_factory=set)
    # Few threads, so that a burst of huge prompts leaves the cores to the engine.
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="ekiden-text"))

    @property
    def max_body_bytes(self) -> int:
        return int(self.config.limits.max_body_mib * 2**20)

    def check_model(self, name: str) -> None:
        """A name is compared and never looked up: it is not a path and not an address."""
        if name != self.engine.card.model_id:
            raise model_not_found(name, self.engine.card.model_id)

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Run long text work on a thread, so that streams and probes go on."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, functools.partial(work))

    def retry_seconds(self) -> int:
        """How long the queue is likely to take, from what the engine has computed per second so far: 1 to 60."""
        stats = self.engine.stats()
        busy = stats.model_seconds_total + stats.sampling_seconds_total + stats.host_seconds_total
        done = stats.prompt_tokens_total + stats.generation_tokens_total
        if busy <= 0 or done <= 0:
            return 1
        return max(1, min(60, round(stats.waiting_tokens * busy / done)))
