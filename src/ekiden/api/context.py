"""What every route works with: the engine, the model's text side, the limits, and the live exchanges."""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.types import Receive, Scope

from ekiden.api.body_limit import read_json_body
from ekiden.api.errors import closed_to_newcomers, model_not_found, shutting_down
from ekiden.api.exchange import Exchange
from ekiden.api.keys import KeyStore
from ekiden.api.metrics import ApiMetrics
from ekiden.api.text_output import TokenText
from ekiden.config import Config
from ekiden.engine.interface import Engine
from ekiden.models.chat_template import ChatTemplate
from ekiden.models.tokenizer import Tokenizer
from ekiden.sampling.structured import GrammarCompiler
from ekiden.state.sampling_params import SamplingParams

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class ApiContext:
    engine: Engine
    tokenizer: Tokenizer
    grammars: GrammarCompiler
    chat_template: ChatTemplate | None
    """None for a model without one: chat is then refused, completions work."""
    config: Config
    defaults: SamplingParams
    """Sampling values for what a request leaves out."""
    metrics: ApiMetrics
    token_text: TokenText
    keys: KeyStore = field(default_factory=KeyStore)
    max_token_bytes: int | None = None
    """No token stands for more bytes of text than this; found when it is first needed."""
    keep_alive_seconds: float = 15.0
    draining: bool = False
    """True from the moment the server is asked to stop."""
    closing: bool | None = None
    """What an operator has asked for and the engine has not done yet: to be closed to newcomers, or open."""
    in_flight: dict[str, set[str]] = field(default_factory=dict)
    """The engine's ids of the answers of each call that is being answered."""
    live: set[Exchange] = field(default_factory=set)
    # Few threads, so that a burst of huge prompts leaves the cores to the engine.
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="ekiden-text"))

    @property
    def max_body_bytes(self) -> int:
        return int(self.config.limits.max_body_mib * 2**20)

    async def read_body(self, scope: Scope, receive: Receive) -> bytes:
        """A request's body within the limits of size and time; see :func:`read_json_body`."""
        limits = self.config.limits
        return await read_json_body(scope, receive, max_bytes=self.max_body_bytes, seconds=limits.body_timeout)

    @property
    def closed(self) -> bool:
        """True while an operator keeps new requests out."""
        return self.engine.controls().controls.draining if self.closing is None else self.closing

    def check_open(self) -> None:
        """Raise :class:`ApiError` 503 while no new work is taken."""
        if self.draining:
            raise shutting_down()
        if self.closed:
            raise closed_to_newcomers()

    def note_begin(self, call_id: str, request_id: str) -> None:
        self.in_flight.setdefault(call_id, set()).add(request_id)

    def note_end(self, call_id: str, request_id: str) -> None:
        answers = self.in_flight[call_id]
        answers.discard(request_id)
        if not answers:
            del self.in_flight[call_id]

    def answers_of(self, wanted: str) -> list[str]:
        """The engine's ids of a call's answers in flight, or of the one answer with that id; none when unknown."""
        if wanted in self.in_flight:
            return sorted(self.in_flight[wanted])
        return [wanted] if wanted in self.in_flight.get(wanted.rpartition("-")[0], ()) else []

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
