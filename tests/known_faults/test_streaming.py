"""Streams: whole characters, stop strings, usage, reasons, slow readers."""

import asyncio
import itertools
import json
from typing import Any

import httpx
import pytest

from tests.api.conftest import Memory
from tests.api.real_core import RealCore, real_core
from tests.api.scripted import END, LONG, say
from tests.known_faults.conftest import CHAT, PATHS, TEXT, own, request_of, small, streamed, text_of, whole

WORDS = ["日本語🌶️é👩‍👩‍👧", "e\u0301\u0323 שָׁלוֹם عَرَبِيّ नमस्ते"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("text", WORDS)
async def test_pb_18_characters_of_several_tokens_come_whole(core: RealCore, path: str, text: str) -> None:
    logprobs = {"logprobs": True} if path == CHAT else {"logprobs": 0}
    for extra in ({}, logprobs):
        fields = {"guided_choice": [text], "max_tokens": 200, **extra}
        chunks = own(await streamed(core.http, path, **fields))
        pieces = [text_of(path, choice) for choice in chunks]
        answer = (await whole(core.http, path, **fields))["choices"][0]
        assert "".join(pieces) == text_of(path, answer) == text
        assert not any("\ufffd" in piece for piece in pieces)
    if path == CHAT:
        for choices in (chunks, [answer]):
            told = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
            assert bytes(itertools.chain.from_iterable(entry["bytes"] for entry in told)).decode() == text


TOKENS = [*say("x "), LONG["abcSTO"], LONG["Pdef"], LONG["hello"], LONG[" world"], *say("🌶️ end"), END]
WRITTEN = "x abcSTOPdefhello world🌶️ end"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "stop",
    [
        ["cSTOPdefhel"],  # begins inside a token, ends inside one two later
        ["STOP", "STOPdef"], ["STOPdef", "STOP"],  # one the beginning of the other
        ["hello"], ["hell"], ["🌶️"], ["\ufe0f"], ["x"], ["x abc"], ["zzz", "yyy", "world", "end"], ["nothing of it"],
        ["end!"],  # held back to the end, and given out
    ],
    ids=repr,
)  # fmt: skip
async def test_pb_21_no_part_of_a_stop_is_ever_sent(memory: Memory, path: str, stop: list[str]) -> None:
    memory.engine.script = lambda request: TOKENS
    found = [(WRITTEN.index(each), len(each), each) for each in stop if each in WRITTEN]
    expected, hit = (WRITTEN[: min(found)[0]], min(found)[2]) if found else (WRITTEN, None)
    # The prompt holds the stops too, and its text never counts.
    chunks = own(await streamed(memory.http, path, text=f"say {stop}", stop=stop))
    answer = (await whole(memory.http, path, text=f"say {stop}", stop=stop))["choices"][0]
    assert "".join(text_of(path, choice) for choice in chunks) == text_of(path, answer) == expected
    assert chunks[-1]["finish_reason"] == answer["finish_reason"] == "stop"
    assert answer["stop_reason"] == hit
    sent = ""
    for choice in chunks:
        sent += text_of(path, choice)
        assert expected.startswith(sent)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"stream_options": None},
    {"stream_options": {}},
    {"stream_options": {"include_usage": False}},
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"max_tokens": 1}, {"stop": "o"}, {"stop": "k"}], ids=repr)
async def test_pb_23_usage_comes_once_and_only_when_asked_for(
    memory: Memory, path: str, fields: dict[str, Any]
) -> None:
    for written in ("ok", ""):
        memory.engine.script = lambda request, written=written: [*say(written), END]  # type: ignore[misc]
        expected = (await whole(memory.http, path, **fields))["usage"]
        for options in OPTIONS:
            chunks = await streamed(memory.http, path, **options, **fields)
            assert all(chunk["choices"] and chunk.get("usage") is None for chunk in chunks)
        chunks = await streamed(memory.http, path, stream_options={"include_usage": True}, **fields)
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == expected
        assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks[:-1])
        assert all(own(chunks, index)[-1]["finish_reason"] for index in range(fields.get("n", 1)))


@pytest.mark.parametrize("path", PATHS)
async def test_pb_23_stream_options_need_a_stream(memory: Memory, path: str) -> None:
    body = request_of(path, stream_options={"include_usage": True}, stream=False)
    assert (await memory.http.post(path, json=body)).status_code == 400


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"logit_bias": {str(END): 100}}, "stop"),
        ({"logit_bias": {str(END): 100}, "max_tokens": 1}, "stop"),  # the end on the last allowed token
        ({"logit_bias": {str(END): -100}, "max_tokens": 3}, "length"),
        ({"guided_choice": ["one two"], "stop": "two", "max_tokens": 30}, "stop"),
        ({"guided_choice": ["ab"], "max_tokens": 2}, "stop"),  # the grammar's end on the last allowed token
    ],
    ids=repr,
)
async def test_pb_25_the_reason_is_null_until_it_is_final(
    core: RealCore, path: str, n: int, fields: dict[str, Any], reason: str
) -> None:
    answer = await whole(core.http, path, n=n, **fields)
    chunks = await streamed(core.http, path, n=n, **fields)
    for index in range(n):
        choices = own(chunks, index)
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [reason]
        assert answer["choices"][index]["finish_reason"] == reason
        assert "".join(text_of(path, choice) for choice in choices) == text_of(path, answer["choices"][index])
        if path == CHAT:
            assert choices[0]["delta"] == {"role": "assistant", "content": ""}


COLOUR = {"type": "object", "properties": {"k": {"enum": ["red", "green"]}}, "required": ["k"]}
TOOL = {"type": "function", "function": {"name": "get", "parameters": {**COLOUR, "additionalProperties": False}}}


async def test_r_17_a_stream_with_tools_always_ends_with_one_reason(core: RealCore) -> None:
    """Some are cut inside their call."""
    no_spaces = {str(ord(space)): -100 for space in "\t\n\r "}

    async def one(limit: int) -> str:
        fields = {"tools": [TOOL], "tool_choice": "required", "logit_bias": no_spaces, "max_tokens": limit}
        chunks = own(await streamed(core.http, CHAT, **fields))
        reasons = [choice["finish_reason"] for choice in chunks]
        assert reasons[:-1] == [None] * (len(reasons) - 1)
        return str(reasons[-1])

    reasons = await asyncio.gather(*(one(10 + 4 * index) for index in range(50)))
    assert set(reasons) == {"length", "tool_calls"}


async def test_r_03_slow_readers_lose_nothing() -> None:
    """Six streams at once whose readers take their time: each gets all of its own."""
    async with real_core(small(), live=True) as core:

        async def read(http: httpx.AsyncClient, index: int) -> str:
            body = request_of(TEXT, f"reader {index}", max_tokens=200, ignore_eos=True, stream=True)
            text, rest = "", ""
            async with http.stream("POST", TEXT, json=body) as response:
                async for part in response.aiter_text():
                    await asyncio.sleep(0.001)
                    *lines, rest = (rest + part).split("\n\n")
                    for line in lines:
                        if line != "data: [DONE]":
                            text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
            return text

        read_by = await asyncio.gather(*(read(core.http, index) for index in range(6)))
        for index, text in enumerate(read_by):
            alone = await whole(core.http, TEXT, text=f"reader {index}", max_tokens=200, ignore_eos=True)
            assert text == alone["choices"][0]["text"]
        await core.clean()


@pytest.mark.parametrize("fields", [{"stop": "STOP"}, {"stop_token_ids": [LONG["hello"]]}], ids=repr)
async def test_r_09_log_probabilities_are_those_of_the_tokens_given(memory: Memory, fields: dict[str, Any]) -> None:
    memory.engine.script = lambda request: TOKENS
    choice = (await whole(memory.http, CHAT, logprobs=True, top_logprobs=2, **fields))["choices"][0]
    told = choice["logprobs"]["content"]
    assert choice["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in told)
    assert "".join(entry["token"] for entry in told) == choice["message"]["content"]
    chunks = own(await streamed(memory.http, CHAT, logprobs=True, top_logprobs=2, **fields))
    assert [entry for each in chunks if each["logprobs"] for entry in each["logprobs"]["content"]] == told
