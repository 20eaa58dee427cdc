"""Requests whose grammar compiles: they wait outside the core, and nobody waits with them."""

import asyncio
from collections.abc import AsyncIterator
from collections.abc import Sequence as Tokens
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from ekiden.build.engines import build_engine
from ekiden.engine.async_engine import AsyncEngine
from ekiden.engine.parts import EngineParts
from ekiden.sampling.grammar_limits import GrammarError
from ekiden.state.request import FinishReason, RefusalReason, Request
from ekiden.state.sampling_params import Grammar, GrammarKind
from tests.unit.engine.fake_parts import make_config, make_fake_parts, make_request
from tests.unit.engine.test_engines import collect, expected

GRAMMAR = Grammar(kind=GrammarKind.REGEX, source="anything")


class EndsAfter:
    """Rules that allow all tokens and end after ``count``; with ``failure`` they fail there."""

    def __init__(self, count: int, failure: str | None = None) -> None:
        self._left = count
        self._failure = failure
        self.error: str | None = None

    def forced(self, limit: int) -> tuple[int, ...]:
        return ()

    def masks(self, drafts: Tokens[int] = ()) -> tuple[bytes, ...]:
        return (b"\xff" * 125,) * (len(drafts) + 1)

    def advance(self, token: int) -> bool:
        self._left -= 1
        if self._left == 0:
            self.error = self._failure
        return self._left <= 0


@dataclass
class SlowCompiler:
    """Stands in for the compiler: it is ready when the test says so."""

    future: "Future[Any]" = field(default_factory=Future)

    def submit(self, grammar: Grammar) -> "Future[Any]":
        return self.future

    def compile(self, grammar: Grammar) -> Any:
        assert self.future.done(), "a step would have waited for the compiler"
        result = self.future.result()
        if isinstance(result, GrammarError):
            raise result
        return result


@pytest.fixture
def compiler() -> SlowCompiler:
    return SlowCompiler()


@pytest.fixture
async def engine(compiler: SlowCompiler) -> AsyncIterator[AsyncEngine]:
    config = make_config()
    parts: EngineParts = replace(make_fake_parts(config), grammars=compiler)  # type: ignore[arg-type]
    async with AsyncEngine(build_engine(parts, config)) as running:
        yield running


def constrained(request_id: str, max_tokens: int = 50) -> Request:
    plain = make_request(request_id, max_tokens=max_tokens)
    changes = {name: getattr(plain.sampling, name) for name in plain.sampling.__struct_fields__}
    sampling = type(plain.sampling)(**{**changes, "grammar": GRAMMAR})
    return Request(request_id=request_id, prompt_token_ids=plain.prompt_token_ids, sampling=sampling, arrival_time=0.0)


async def end_of(engine: AsyncEngine, request: Request) -> tuple[list[int], Any, Any]:
    tokens: list[int] = []
    async for update in engine.generate(request):
        tokens += update.token_ids
    return tokens, update.finish, update.refusal


async def test_others_run_while_a_grammar_compiles_and_the_answer_ends_with_it(engine, compiler) -> None:
    held = asyncio.create_task(end_of(engine, constrained("held")))
    free = make_request("free", max_tokens=20)
    assert await collect(engine, free) == expected(free, 20)
    assert not held.done()
    compiler.future.set_result(EndsAfter(6))
    tokens, finish, _ = await held
    assert tokens == expected(constrained("held"), 6)
    assert finish.reason is FinishReason.STOP
    assert finish.stop_reason is None


async def test_a_grammar_that_cannot_be_used_is_refused(engine, compiler) -> None:
    compiler.future.set_result(GrammarError("no text can match it"))
    _, finish, refusal = await end_of(engine, constrained("bad"))
    assert finish is None
    assert refusal.reason is RefusalReason.INVALID
    assert refusal.param == "grammar"
    assert "no text can match it" in refusal.message


async def test_a_request_aborted_while_its_grammar_compiles_gets_its_one_end(engine, compiler) -> None:
    held = asyncio.create_task(end_of(engine, constrained("held")))
    free = make_request("free", max_tokens=2)
    await collect(engine, free)
    await engine.abort("held")
    await collect(engine, make_request("more", max_tokens=2))
    compiler.future.set_result(EndsAfter(6))
    tokens, finish, _ = await held
    assert (tokens, finish.reason) == ([], FinishReason.ABORT)
    assert engine.stats().kv_blocks_used == 0


async def test_a_grammar_that_fails_on_the_way_ends_the_answer_with_an_error(engine, compiler) -> None:
    compiler.future.set_result(EndsAfter(3, "too complex"))
    tokens, finish, _ = await end_of(engine, constrained("hard"))
    assert len(tokens) == 3
    assert finish.reason is FinishReason.ERROR
    assert finish.message == "too complex"


async def test_the_length_limit_still_holds(engine, compiler) -> None:
    compiler.future.set_result(EndsAfter(30))
    tokens, finish, _ = await end_of(engine, constrained("long", max_tokens=10))
    assert len(tokens) == 10
    assert finish.reason is FinishReason.LENGTH


async def test_stopping_refuses_what_still_compiles(compiler) -> None:
    config = make_config()
    parts: EngineParts = replace(make_fake_parts(config), grammars=compiler)
    async with AsyncEngine(build_engine(parts, config)) as engine:
        held = asyncio.create_task(end_of(engine, constrained("held")))
        await collect(engine, make_request("free", max_tokens=2))
        await engine.stop(drain_seconds=0.0)
        _, _, refusal = await held
    assert refusal.reason is RefusalReason.DRAINING


async def test_a_model_without_text_refuses_grammars() -> None:
    config = make_config()
    async with AsyncEngine(build_engine(make_fake_parts(config), config)) as engine:
        _, _, refusal = await end_of(engine, constrained("r"))
    assert refusal.reason is RefusalReason.INVALID
    assert "writes no text" in refusal.message


class BrokenCompiler(SlowCompiler):
    def submit(self, grammar: Grammar) -> "Future[Any]":
        raise RuntimeError("can't start new thread")

    def compile(self, grammar: Grammar) -> Any:
        return self.submit(grammar).result()


async def test_a_compiler_that_cannot_even_begin_ends_its_request_alone() -> None:
    parts = replace(make_fake_parts(make_config()), grammars=BrokenCompiler())  # type: ignore[arg-type]
    async with AsyncEngine(build_engine(parts, make_config(), record=False)) as engine:
        wanted = make_request("grammar", max_tokens=5)
        sampling = msgspec.structs.replace(wanted.sampling, grammar=GRAMMAR)
        failing = [update async for update in engine.generate(msgspec.structs.replace(wanted, sampling=sampling))]
        plain = [update async for update in engine.generate(make_request("plain", max_tokens=5))]
    refusal, finish = failing[-1].refusal, plain[-1].finish
    assert refusal is not None
    assert refusal.reason is RefusalReason.INTERNAL_ERROR
    assert "can't start new thread" in refusal.message
    assert finish is not None
    assert finish.reason is FinishReason.LENGTH
