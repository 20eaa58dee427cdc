"""Neighbours, shared beginnings, requests too large for the pool, and the engine as a library."""

import asyncio
import json
import time
from typing import Any

import pytest

from ekiden.build.core import build_core
from ekiden.build.engines import build_engine, build_llm
from ekiden.engine.async_engine import AsyncEngine
from ekiden.state.request import Request, RequestUpdate
from ekiden.state.sampling_params import SamplingParams
from tests.api.real_core import BLOCK, CONTEXT, RealCore, make_parts, make_runner, real_core
from tests.api.test_admin import Gate
from tests.known_faults.conftest import CHAT, TEXT, request_of, small, text_of, whole
from tests.known_faults.gates import opened

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.mark.parametrize("penalty", [{"frequency_penalty": 1.5}, {"repetition_penalty": 1.8}])
async def test_pb_01_a_penalty_is_its_own_rows_wherever_it_stands(core: RealCore, penalty: dict[str, float]) -> None:
    prompt = "one two one two one two"
    # Biases somewhat above the model's own logits, so that a penalty changes which token is highest.
    near = {"logit_bias": {str(ord(letter)): 1.5 for letter in "one tw"}, "ignore_eos": True}
    penalised = {"text": prompt, "max_tokens": 24, **near, **penalty}
    plain = {"text": prompt, "max_tokens": 20, "top_k": 1, "seed": 7, **near}
    solo = [(await whole(core.http, TEXT, **each))["choices"] for each in (penalised, plain)]
    assert solo[0][0]["text"][:20] != solo[1][0]["text"]
    for order in [(0, 1), (1, 0), (0, 0, 1), (1, 1, 0)] * 5:
        calls = [asyncio.create_task(whole(core.http, TEXT, **(penalised, plain)[which])) for which in order]
        for which, answer in zip(order, await asyncio.gather(*calls), strict=True):
            assert answer["choices"] == solo[which]


LONG = "-" * 150
"""Makes an answer so long that others certainly join while it is being written."""


def one_of(*words: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {"k": {"enum": list(words)}}, "required": ["k"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}
    return {"response_format": form, "max_tokens": 250, "logit_bias": {str(ord(space)): -100 for space in " \t\n\r"}}


async def test_pb_03_rows_that_join_in_waves_keep_their_own_grammars() -> None:
    gate = Gate()
    async with real_core(small(), before_step=gate) as core, opened(gate):

        async def said(**fields: Any) -> str:
            return text_of(CHAT, (await whole(core.http, CHAT, **fields))["choices"][0])

        async def wave(*asked: dict[str, Any]) -> list["asyncio.Task[str]"]:
            """Start requests, and let the engine take a step at a time until all of them run."""
            in_flight = core.app.state.doors.generation.flight.calls
            wanted, so_many = core.engine.stats().num_running + len(asked), len(in_flight) + len(asked)
            calls = [asyncio.create_task(said(**fields)) for fields in asked]
            async with asyncio.timeout(60):
                while len(in_flight) < so_many:  # before a step is taken, so that no other answer ends meanwhile
                    await asyncio.sleep(0.001)
            await gate.step_until(lambda: core.engine.stats().num_running >= wanted)
            return calls

        plain = [{"text": str(index), "max_tokens": 900, "ignore_eos": True} for index in range(2)]
        choices = [(left + LONG, right + LONG) for left, right in (("red", "green"), ("up", "down"), ("on", "off"))]
        gate.open.set()
        solo = [await said(**fields) for fields in plain]
        for words in choices:
            await said(**one_of(*words))  # compiled from here on, so that nothing waits for that
        gate.open.clear()
        running = await wave(*plain)
        second = await wave(one_of(*choices[0]))
        third = await wave(*(one_of(*words) for words in choices[1:]))
        gate.open.set()
        for words, answer in zip(choices, await asyncio.gather(*second, *third), strict=True):
            assert json.loads(answer)["k"] in words
        assert await asyncio.gather(*running) == solo
        for cycle in range(5):
            for words in ((f"a{cycle}", f"b{cycle}"), ("x", "y"), ("z", "w")):
                assert json.loads(await said(**one_of(*words)))["k"] in words
            assert await said(**plain[1]) == solo[1]


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 1])
async def test_pb_05_the_same_prompt_again_gives_the_same(core: RealCore, length: int) -> None:
    prompt = [(11 * index) % 200 for index in range(length)]
    fields: dict[str, Any] = {"max_tokens": 16, "logprobs": 1, "ignore_eos": True}
    first = await whole(core.http, TEXT, prompt=prompt, **fields)
    again = [await whole(core.http, TEXT, prompt=prompt, **fields) for _ in range(2)]
    again += await asyncio.gather(*(whole(core.http, TEXT, prompt=prompt, **fields) for _ in range(4)))
    for answer in again:
        assert answer["choices"] == first["choices"]
        assert answer["usage"]["prompt_tokens"] == length
        found = max(0, length - core.runner.info.chunks.least) // BLOCK * BLOCK
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == found < length
    for other in ([*prompt, 5], prompt[:-1]):
        if other:
            answer = await whole(core.http, TEXT, prompt=other, **fields)
            async with real_core(small()) as fresh:
                assert answer["choices"] == (await whole(fresh.http, TEXT, prompt=other, **fields))["choices"]


async def test_pb_09_what_is_larger_than_the_pool_holds_up_nobody() -> None:
    pool = 12 * BLOCK
    async with real_core(small(), num_blocks=12) as core:
        assert pool < CONTEXT

        async def short() -> None:
            answers = await asyncio.gather(*(whole(core.http, TEXT, max_tokens=3) for _ in range(3)))
            assert [answer["usage"]["completion_tokens"] for answer in answers] == [3] * 3

        too_large = core.http.post(TEXT, json=request_of(TEXT, prompt=[1] * (pool + 1), max_tokens=1))
        refused, _ = await asyncio.gather(too_large, short())
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "exceeds_kv_cache")
        over = await core.http.post(TEXT, json=request_of(TEXT, prompt=[1] * (pool - 8), max_tokens=64))
        assert over.status_code == 400
        fits, _ = await asyncio.gather(whole(core.http, TEXT, prompt=[1] * (pool - 8), ignore_eos=True), short())
        assert (fits["usage"]["total_tokens"], fits["choices"][0]["finish_reason"]) == (pool, "length")
        # Eight answers that fit one at a time only: they take turns.
        many, _ = await asyncio.gather(
            whole(core.http, TEXT, prompt=[1] * (pool // 2), n=8, max_tokens=pool // 3, ignore_eos=True), short()
        )
        assert [choice["finish_reason"] for choice in many["choices"]] == ["length"] * 8
        await core.clean()


def make_core(num_blocks: int = 512) -> Any:
    runner = make_runner(num_blocks)
    return build_core(make_parts(runner), small())


def asked(name: str, prompt: int, output: int) -> Request:
    """A request whose prompt shares its beginning with no other name's."""
    sampling = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
    tokens = (*name.encode(), *[1] * prompt)[:prompt]
    return Request(request_id=name, prompt_token_ids=tokens, sampling=sampling, arrival_time=time.monotonic())


@pytest.mark.parametrize("prompts", [1, 4])
def test_pb_15_and_r_14_no_stream_stands_still_while_prompts_are_computed(prompts: int) -> None:
    """Every step that computes a prompt moves every running stream by a token, and costs the prompts little."""
    core = make_core()
    core.add_request(asked("alone-long", CONTEXT - 50, 1))
    alone = 0
    while core.has_work:
        core.step()
        alone += 1
    for name in ("a", "b"):
        core.add_request(asked(name, 5, 300))
    for _ in range(20):
        core.step()
    for index in range(prompts):
        core.add_request(asked(f"{index}-long", CONTEXT - 50, 1))
    steps, ended = 0, 0
    while ended < prompts:
        updates = core.step().updates
        assert {"a", "b"} <= {update.request_id for update in updates}
        ended += sum(update.request_id.endswith("long") for update in updates)
        steps += 1
    assert steps > 10 * prompts  # the prompts took many steps, and all of them moved the streams
    assert steps <= 2 * alone * prompts


def test_r_04_what_was_given_out_does_not_change_later() -> None:
    core = make_core(num_blocks=24)
    for index in range(3):
        core.add_request(asked(f"{index}", 6 * BLOCK, 60))
    kept: list[tuple[RequestUpdate, str]] = []
    while core.has_work:
        kept += [(update, repr(update)) for update in core.step().updates]
    assert core.stats().preemptions_total > 0
    assert all(repr(update) == text for update, text in kept)
    assert sum(len(update.token_ids) for update, _ in kept) == 3 * 60


def test_r_05_batches_one_after_another_keep_to_their_own() -> None:
    with build_llm(make_parts(make_runner()), small()) as llm:
        batches = [[[7 * batch + index + 1] * 3 for index in range(size)] for batch, size in enumerate((4, 3, 4))]
        together = [llm.generate(batch, GREEDY) for batch in batches]
        for batch, answers in zip(batches, together, strict=True):
            alone = [llm.generate([prompt], GREEDY)[0] for prompt in batch]
            assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in alone]


async def test_r_13_readers_do_not_take_from_one_another() -> None:
    """Four readers, one of them idle and one with a time limit of its own: each gets its own, and each ends."""
    async with AsyncEngine(build_engine(make_parts(make_runner()), small())) as engine:

        async def read(name: str) -> int:
            return sum([len(update.token_ids) async for update in engine.generate(asked(name, 3, 40))])

        idle = engine.generate(asked("idle", 3, 40))
        limited = engine.generate(asked("limited", 3, 900))
        assert list(await asyncio.gather(read("one"), read("two"))) == [40, 40]

        async def first_of_limited() -> None:
            async for _ in limited:
                await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first_of_limited(), 0.1)
        await limited.aclose()
        assert sum([len(update.token_ids) async for update in idle]) == 40  # its updates had waited for it
