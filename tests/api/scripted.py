"""A small deterministic engine and a byte-level toy tokenizer, for tests of the API alone.

Tokens 0 to 255 are bytes. Then come special tokens and a few longer ones that only scripts produce.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from ekiden.api.app import create_app
from ekiden.config import Config, ServerConfig, controls_of
from ekiden.engine.interface import EngineDied, EngineStats, Health, ModelCard
from ekiden.models.chat_template import ChatTemplate
from ekiden.models.text import IncrementalText
from ekiden.models.tokenizer import Tokenizer
from ekiden.state.controls import ControlChange, ControlsInForce, ControlState
from ekiden.state.request import Finish, FinishReason, Refusal, RefusedCall, Request, RequestUpdate, TokenLogprobs

START, END, BOS = 256, 257, 258
LONG: dict[str, int] = {"abcSTO": 259, "Pdef": 260, "hello": 261, " world": 262}
VOCAB_SIZE = 263
CONTEXT = 400
MODEL = "toy/model"
FINGERPRINT = "ekiden-0.1.0-0123abcd"

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet() -> list[str]:
    """GPT-2's character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def make_tokenizer(*, adds_bos: bool = False) -> Tokenizer:
    alphabet = byte_alphabet()
    vocabulary = {character: byte for byte, character in enumerate(alphabet)}
    special = {"<|im_start|>": START, "<|im_end|>": END, "<|bos|>": BOS}
    for text, token in LONG.items():
        vocabulary["".join(alphabet[byte] for byte in text.encode())] = token
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary | special, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(
        backend=backend,
        rest=backend,
        byte_level=True,
        added={token: text for text, token in special.items()},
        special=special,
        prefix=(BOS,) if adds_bos else (),
        bos_token_id=BOS if adds_bos else None,
        eos_token_ids=frozenset({END}),
        eos_token="<|im_end|>",
        vocab_size=VOCAB_SIZE,
    )


def say(text: str) -> list[int]:
    return list(text.encode())


class ScriptedEngine:
    """Answers each request with the tokens of ``script``, one at a time, under the engine's stop rules.

    With ``gate`` set, every answer waits before its token number ``gate_at`` until the gate opens.
    """

    def __init__(self, tokenizer: Tokenizer, script: Callable[[Request], list[int]] | None = None) -> None:
        self.tokenizer = tokenizer
        self.script = script or (lambda request: [*say("ok"), END])
        self.refuse: Callable[[Request], Refusal | None] = lambda request: None
        self.end: dict[int, FinishReason] = {}
        """Number of tokens -> the reason with which an answer ends after so many."""
        self.dies_at: int | None = None
        self.gate: asyncio.Event | None = None
        self.gate_at = 0
        self.health = Health.OK
        self.requests: list[Request] = []
        self.aborted: list[str] = []
        self.commands: list[tuple[str, object]] = []
        """The pause, resume and controls commands received."""
        self.in_force = ControlsInForce(controls_of(Config()))
        self.noted: list[RefusedCall] = []
        """What the HTTP layer refused."""
        self.ledger_path: Path | None = None
        self.reached_gate = asyncio.Event()
        self.someone_aborted = asyncio.Event()
        self.snapshot = EngineStats()
        self.card = ModelCard(
            model_id=MODEL,
            max_model_len=CONTEXT,
            vocab_size=VOCAB_SIZE,
            block_size=32,
            num_blocks=64,
            created=1_700_000_000,
            fingerprint=FINGERPRINT,
            details={"weights": "none"},
        )

    def stats(self) -> EngineStats:
        refused = Counter(each.refusal.reason.value for each in self.noted)
        return msgspec.structs.replace(self.snapshot, refused_by_door_total=dict(refused))

    def note_refusal(self, refused: RefusedCall) -> bool:
        self.noted.append(refused)
        return True

    def generate(self, request: Request) -> "ScriptedStream":
        self.requests.append(request)
        return ScriptedStream(self, request)

    async def abort(self, request_id: str, why: str | None = None) -> None:
        self.note_abort(request_id)

    async def pause(self, request_id: str, by: str | None = None) -> None:
        self.commands.append(("pause", request_id))

    async def resume(self, request_id: str, by: str | None = None) -> None:
        self.commands.append(("resume", request_id))

    def restart(self, why: str) -> None:
        self.commands.append(("restart", why))

    def controls(self) -> ControlState:
        return self.in_force.state

    async def set_controls(self, change: ControlChange) -> ControlState:
        self.commands.append(("set_controls", change.values))
        self.in_force.apply(change, time.monotonic())
        return self.in_force.state

    def note_abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self.someone_aborted.set()


class ScriptedStream:
    """The updates of one request."""

    def __init__(self, engine: ScriptedEngine, request: Request) -> None:
        self._engine = engine
        self._request = request
        self._tokens = engine.script(request)
        sampling = request.sampling
        self._stops = IncrementalText(
            engine.tokenizer,
            sampling.stop,
            sampling.include_stop_str_in_output,
            min_tokens=sampling.min_tokens,
            thinking=sampling.reasoning_marks,
        )
        self._given = 0
        self._ended = False

    def __aiter__(self) -> AsyncIterator[RequestUpdate]:
        return self

    async def __anext__(self) -> RequestUpdate:
        if self._ended:
            raise StopAsyncIteration
        engine, request = self._engine, self._request
        await asyncio.sleep(0)
        refusal = engine.refuse(request)
        if refusal is not None:
            return self._terminal(RequestUpdate(request.request_id, (), None, refusal))
        if engine.gate is not None and self._given == engine.gate_at:
            engine.reached_gate.set()
            await engine.gate.wait()
        if engine.dies_at == self._given:
            self._ended = True
            raise EngineDied("killed by the test")
        if self._given in engine.end:
            return self._terminal(self._finish((), engine.end[self._given], None))
        return self._next_token()

    def _next_token(self) -> RequestUpdate:
        request, sampling = self._request, self._request.sampling
        if sampling.max_tokens == 0:
            ended = msgspec.structs.replace(
                self._finish((), FinishReason.LENGTH, None), prompt_logprobs=self._of_prompt()
            )
            return self._terminal(ended)
        token = self._tokens[self._given]
        self._given += 1
        reason: FinishReason | None = None
        stop_reason: str | int | None = None
        matched = self._stops.feed(token).stopped
        room = self._engine.card.max_model_len - len(request.prompt_token_ids)
        limit = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        if self._given >= sampling.min_tokens:
            if token == END and not sampling.ignore_eos:
                reason = FinishReason.STOP
            elif token in sampling.stop_token_ids:
                reason, stop_reason = FinishReason.STOP, token
            elif matched is not None:
                reason, stop_reason = FinishReason.STOP, matched
        if reason is None and (self._given >= limit or self._given == len(self._tokens)):
            reason = FinishReason.LENGTH
        logprobs = None
        if sampling.logprobs is not None:
            top = tuple(((token + rank) % VOCAB_SIZE, -0.5 - rank) for rank in range(sampling.logprobs))
            logprobs = (TokenLogprobs(logprob=-0.5, top=top),)
        prompt = self._of_prompt() if self._given == 1 else None
        finish = None if reason is None else self._finish((token,), reason, stop_reason).finish
        update = RequestUpdate(request.request_id, (token,), finish, None, logprobs, prompt)
        return update if finish is None else self._terminal(update)

    def _of_prompt(self) -> tuple[TokenLogprobs, ...] | None:
        if self._request.sampling.prompt_logprobs is None:
            return None
        return tuple(TokenLogprobs(logprob=-0.25, rank=1) for _ in self._request.prompt_token_ids[1:])

    def _finish(
        self,
        tokens: tuple[int, ...],
        reason: FinishReason,
        stop_reason: str | int | None,
    ) -> RequestUpdate:
        request, now = self._request, time.monotonic()
        finish = Finish(
            reason=reason,
            stop_reason=stop_reason,
            num_prompt_tokens=len(request.prompt_token_ids),
            num_output_tokens=self._given,
            num_cached_tokens=min(3, len(request.prompt_token_ids) - 1),
            arrival_time=request.arrival_time,
            admitted_time=request.arrival_time,
            first_token_time=now if self._given else None,
            finish_time=now,
        )
        return RequestUpdate(request.request_id, tokens, finish)

    def _terminal(self, update: RequestUpdate) -> RequestUpdate:
        self._ended = True
        return update

    async def aclose(self) -> None:
        if not self._ended:
            self._ended = True
            self._engine.note_abort(self._request.request_id)


QUICK = ServerConfig(port=0, shutdown_timeout=1.0, log_level="warning")
"""Settings of a server that ends soon."""


def make_app(engine: ScriptedEngine, config: Config | None = None, *, template: str | None = TEMPLATE):
    chat_template = None if template is None else ChatTemplate(template)
    return create_app(engine, engine.tokenizer, chat_template, config or Config())
