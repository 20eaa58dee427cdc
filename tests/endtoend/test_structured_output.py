"""Grammars on the real model, through the whole server but the socket: every answer keeps to its own."""

import asyncio
import json
import os
import random
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from ekiden.build.engines import build_llm
from ekiden.config import Config, SchedulerConfig
from ekiden.engine.parts import EngineParts
from ekiden.models.resolve import ModelFiles
from ekiden.state.sampling_params import Grammar, GrammarKind, SamplingParams
from tests.endtoend.conftest import SmallPool
from tests.endtoend.serving import Client, server

NAMES = "日本語🌶️é👩‍👩‍👧 שָׁלוֹם e\u0301"


@pytest.fixture
async def client(parts: EngineParts, smollm2_files: ModelFiles) -> AsyncIterator[Client]:
    async with server(parts, smollm2_files) as running:
        yield running


def one_of(*values: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"k": {"enum": list(values)}},
        "required": ["k"],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}


PLAIN = ["Tell me about rivers.", "Count from one to twenty.", "Write a short poem."]


async def test_rows_that_join_in_waves_keep_their_own_grammars(client: Client) -> None:
    plain = [await client.text(text, max_tokens=limit) for text, limit in zip(PLAIN, (40, 40, 12), strict=True)]
    running = [asyncio.create_task(client.text(text, max_tokens=40, stream=False)) for text in PLAIN[:2]]
    while client.engine.stats().num_running < 2 and not any(task.done() for task in running):
        await asyncio.sleep(0)
    second = asyncio.create_task(client.text(response_format=one_of("red", "green")))
    # On a slow machine the first may have ended, or this one too, before anybody looks.
    while client.engine.stats().num_running < 3 and not second.done():
        await asyncio.sleep(0)
    third = [
        asyncio.create_task(client.text(response_format=one_of(*values))) for values in (("up", "down"), ("1", "2"))
    ]
    assert json.loads(await second)["k"] in ("red", "green")
    assert json.loads(await third[0])["k"] in ("up", "down")
    assert json.loads(await third[1])["k"] in ("1", "2")
    assert [await task for task in running] == plain[:2]
    for cycle in range(2):
        values = (f"a{cycle}", f"b{cycle}")
        assert json.loads(await client.text(response_format=one_of(*values)))["k"] in values
        assert await client.text(PLAIN[2], max_tokens=12) == plain[2]
        for other in (("x", "y"), ("z", "w")):
            assert json.loads(await client.text(response_format=one_of(*other)))["k"] in other


MARKERS = int(os.environ.get("SOAK_MARKERS", "40"))


async def test_answers_with_markers_of_their_own_are_never_mixed_up(client: Client) -> None:
    chance = random.Random(1)
    gate = asyncio.Semaphore(32)

    async def ask(index: int, leaves: bool) -> str | None:
        marker = f"marker {index} " + "x" * chance.randrange(12)
        async with gate:
            asking = asyncio.create_task(
                client.text("Say it. " * chance.randrange(1, 9), response_format=one_of(marker), max_tokens=50)
            )
            if leaves:
                for _ in range(chance.randrange(1, 30)):
                    await asyncio.sleep(0)
                asking.cancel()
            try:
                answer = await asking
            except asyncio.CancelledError:
                return None
        assert json.loads(answer) == {"k": marker}
        return answer

    answers = await asyncio.gather(*(ask(index, index % 5 == 0) for index in range(MARKERS)))
    assert all(answers[index] for index in range(MARKERS) if index % 5), "whoever stays is answered"
    async with asyncio.timeout(60):
        while client.engine.stats().num_running or client.engine.stats().num_waiting:
            await client.text("hi", max_tokens=1)
    assert client.engine.stats().kv_blocks_used == 0


async def test_characters_of_many_tokens_come_whole_streamed_and_not(client: Client) -> None:
    fields: dict[str, Any] = {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "strict": True, "schema": {"enum": [NAMES]}},
        },
        "max_tokens": 120,
    }
    whole = await client.chat(logprobs=True, **fields)
    assert json.loads(whole["choices"][0]["message"]["content"]) == NAMES
    chunks = await client.chat(stream=True, logprobs=True, **fields)
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == whole["choices"][0]["message"]["content"]
    assert not any("\ufffd" in delta for delta in deltas)
    for choices in ([whole["choices"][0]], [chunk["choices"][0] for chunk in chunks]):
        entries = [entry for choice in choices for entry in (choice["logprobs"] or {"content": []})["content"]]
        data = b"".join(bytes(entry["bytes"]) for entry in entries)
        assert data.decode() == whole["choices"][0]["message"]["content"]
    assert whole["choices"][0]["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("temperature", [0, 1.0])
async def test_json_matches_its_schema_streamed_as_whole(client: Client, temperature: float) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    }
    fields = {"guided_json": schema, "temperature": temperature, "seed": 5, "max_tokens": 200}
    whole = await client.chat("Describe Bob as JSON.", **fields)
    value = json.loads(whole["choices"][0]["message"]["content"])
    assert list(value) == ["name", "age", "tags"]
    assert isinstance(value["name"], str)
    assert 0 <= value["age"] <= 150
    assert len(value["tags"]) <= 3
    chunks = await client.chat("Describe Bob as JSON.", stream=True, **fields)
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]


async def test_each_kind_of_grammar_holds(client: Client) -> None:
    assert re.fullmatch(r"[0-9]{3}-[0-9]{4}", await client.text(guided_regex=r"\d{3}-\d{4}"))
    assert await client.text(guided_choice=["yes", "no"]) in ("yes", "no")
    assert re.fullmatch(r"a+b", await client.text(guided_grammar='start: "a"~1..5 "b"'))
    assert re.fullmatch(r"x[0-9]{2}", await client.text(guided_grammar='root ::= "x" [0-9] [0-9]'))
    assert isinstance(json.loads(await client.text(response_format=one_of("red"))), dict)


async def test_an_answer_cut_by_its_length_is_told_so(client: Client) -> None:
    answer = await client.chat(response_format=one_of("a" * 200), max_tokens=8)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 8


async def test_the_end_of_a_grammar_ends_the_answer_whatever_else_is_asked(client: Client) -> None:
    for fields in ({"ignore_eos": True}, {"min_tokens": 40}, {"logit_bias": {"0": -100, "2": -100}}):
        answer = await client.chat(guided_regex="[a-z]{3}!", **fields)
        assert re.fullmatch("[a-z]{3}!", answer["choices"][0]["message"]["content"])
        assert answer["choices"][0]["finish_reason"] == "stop"


# --- the promise, with grammars


SCHEMA = Grammar(
    kind=GrammarKind.JSON_SCHEMA,
    source=json.dumps({"type": "object", "properties": {"a": {"type": "string", "minLength": 500}}, "required": ["a"]}),
)
WORDS = Grammar(kind=GrammarKind.REGEX, source="([a-z]{2,8} ){99}")


COUNT = 8
"""So many answers, which outgrow what admission sets aside, two with each grammar and four with none."""


def sampling(index: int) -> SamplingParams:
    temperature = 0.8 if index % 2 else 0.0
    grammar = (None, SCHEMA, None, WORDS)[index % 4]
    return SamplingParams(temperature=temperature, seed=index, max_tokens=64, ignore_eos=True, grammar=grammar)


@pytest.fixture(scope="module")
def alone(parts: EngineParts, chat_prompts: list[list[int]]) -> list[tuple[int, ...]]:
    llm = build_llm(parts, Config(scheduler=SchedulerConfig(batching="sequential")))
    return [each.token_ids for each in llm.generate(chat_prompts[:COUNT], [sampling(i) for i in range(COUNT)])]


def test_free_and_constrained_rows_get_the_same_tokens_together(
    parts: EngineParts, chat_prompts: list[list[int]], alone: list[tuple[int, ...]]
) -> None:
    llm = build_llm(parts, Config(scheduler=SchedulerConfig(max_num_seqs=24, max_num_batched_tokens=512)))
    completions = llm.generate(chat_prompts[:COUNT], [sampling(i) for i in range(COUNT)])
    assert [each.token_ids for each in completions] == alone
    for completion in completions[3::4]:
        assert completion.text
        assert re.fullmatch(r"([a-z]{2,8} )*[a-z]{0,8}", completion.text)


@pytest.mark.parametrize("swap_blocks", [2000, 0], ids=["swapped out and back", "dropped and computed again"])
def test_preemption_leaves_a_grammar_where_it_was(
    parts: EngineParts, chat_prompts: list[list[int]], alone: list[tuple[int, ...]], swap_blocks: int
) -> None:
    prompts = chat_prompts[:COUNT]
    blocks = sum(-(-len(prompt) // 32) for prompt in prompts) + COUNT - 1  # just enough to admit them all
    pool = SmallPool(parts.runner, num_blocks=blocks, num_swap_blocks=swap_blocks)
    # Drafts, whose number follows from measured times, would decide who is preempted.
    scheduler = SchedulerConfig(max_num_seqs=COUNT, num_speculative_tokens=0)
    llm = build_llm(replace(parts, runner=pool), Config(scheduler=scheduler))
    completions = llm.generate(prompts, [sampling(i) for i in range(COUNT)])
    assert [each.token_ids for each in completions] == alone
    preempted = [index for index, each in enumerate(completions) if each.finish and each.finish.num_preemptions]
    assert len(preempted) >= 2
    assert any(sampling(index).grammar for index in preempted)


async def test_a_request_for_a_grammar_that_is_never_used_frees_what_it_held(client: Client) -> None:
    asking = asyncio.create_task(client.chat(response_format=one_of("never read"), max_tokens=50))
    for _ in range(20):
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert await client.text(guided_choice=["yes"]) == "yes"
    assert client.engine.stats().kv_blocks_used == 0
