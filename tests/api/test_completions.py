"""Completions: prompts in every form, echo, log-probabilities, batches."""

import asyncio
import threading
from typing import Any

import pytest

from ekiden.api.schema_base import parse
from tests.api.conftest import Memory, assert_error, events, memory_client
from tests.api.scripted import (
    BOS,
    CONTEXT,
    END,
    FINGERPRINT,
    MODEL,
    VOCAB_SIZE,
    ScriptedEngine,
    make_app,
    make_tokenizer,
    say,
)


def echo_script(memory: Memory) -> None:
    """Answers with the prompt in capitals, so that answers show whose they are."""

    def script(request):
        return [*say(bytes(token for token in request.prompt_token_ids if token < 256).decode().upper()), END]

    memory.engine.script = script


async def test_whole_answer(memory: Memory):
    body = (await memory.complete("hi")).json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["system_fingerprint"] == FINGERPRINT
    assert body["choices"] == [
        {"index": 0, "text": "ok", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert body["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        (["a", "b", "c"], ["A", "B", "C"]),
        ([[97, 98], [99]], ["AB", "C"]),
        ([97, 98], ["AB"]),
        ("ab", ["AB"]),
        (["x"], ["X"]),
        ([str(i) for i in range(1000)], [str(i) for i in range(1000)]),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
async def test_every_prompt_is_answered_in_order(memory: Memory, prompt, texts, n):
    echo_script(memory)
    body = (await memory.complete(prompt, n=n)).json()
    expected = [text for text in texts for _ in range(n)]
    assert [choice["text"] for choice in body["choices"]] == expected
    assert [choice["index"] for choice in body["choices"]] == list(range(len(expected)))
    assert body["usage"]["prompt_tokens"] == sum(map(len, texts))
    assert body["usage"]["completion_tokens"] == n * (sum(map(len, texts)) + len(texts))
    options = {"include_usage": True}
    chunks = events((await memory.complete(prompt, n=n, stream=True, stream_options=options)).text)
    streamed = dict.fromkeys(range(len(expected)), "")
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        streamed[choice["index"]] += choice["text"]
    assert list(streamed.values()) == expected
    assert chunks[-1]["usage"] == body["usage"]


async def test_too_many_answers(memory: Memory):
    assert "2048" in assert_error(await memory.complete(["x"] * 1100, n=2), 400, "n")
    assert memory.engine.requests == []


async def test_max_tokens(memory: Memory):
    for value in (None, 10**12, CONTEXT, CONTEXT - 2):
        assert (await memory.complete("hi", max_tokens=value)).status_code == 200
        assert memory.engine.requests[-1].sampling.max_tokens is None  # what is left of the context
    assert (await memory.complete("hi", max_tokens=1)).json()["usage"]["completion_tokens"] == 1
    wrong: list[Any] = [-1, "5", 5.0, 5.5, True]
    for value in wrong:
        assert_error(await memory.complete("hi", max_tokens=value), 400, "max_tokens")
    assert "echo" in assert_error(await memory.complete("hi", max_tokens=0), 400, "max_tokens")


async def test_echo(memory: Memory):
    assert (await memory.complete("hi ", echo=True)).json()["choices"][0]["text"] == "hi ok"
    assert (await memory.complete([104, 105, END], echo=True)).json()["choices"][0]["text"] == "hi<|im_end|>ok"
    chunks = events((await memory.complete("hi ", echo=True, stream=True)).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hi ok"


async def test_echo_only_asks_for_no_tokens(memory: Memory):
    body = (await memory.complete(["a", "bc"], echo=True, max_tokens=0)).json()
    assert [(choice["text"], choice["finish_reason"]) for choice in body["choices"]] == [
        ("a", "length"), ("bc", "length")
    ]  # fmt: skip
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3, 0)
    response = await memory.complete("hi", echo=True, max_tokens=0, stream=True, stream_options={"include_usage": True})
    chunks = events(response.text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "hi"
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 0
    assert [request.sampling.max_tokens for request in memory.engine.requests] == [0, 0, 0]


async def test_logprobs(memory: Memory):
    memory.engine.script = lambda request: [*say("aé"), END]
    logprobs = (await memory.complete("hi", logprobs=1)).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [{"a": -0.5}, {"bytes:\\xc3": -0.5}, {"bytes:\\xa9": -0.5}],
        "text_offset": [0, 1, 1],
    }
    chunks = events((await memory.complete("hi", logprobs=1, stream=True)).text)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    for key, values in logprobs.items():
        assert [value for part in parts for value in part[key]] == values
    assert (await memory.complete("hi", logprobs=0)).json()["choices"][0]["logprobs"]["top_logprobs"][0] == {"a": -0.5}
    assert_error(await memory.complete("hi", logprobs=6), 400, "logprobs")
    assert_error(await memory.complete("hi", logprobs=True), 400, "logprobs")


async def test_best_of(memory: Memory):
    assert (await memory.complete("hi", best_of=2, n=2)).status_code == 200
    assert_error(await memory.complete("hi", best_of=2, n=4), 400, "best_of")
    assert_error(await memory.complete("hi", best_of=8, stream=True), 400, "best_of")


async def test_token_ids_are_returned(memory: Memory):
    choice = (await memory.complete([1, 2], return_token_ids=True)).json()["choices"][0]
    assert choice["prompt_token_ids"] == [1, 2]
    assert choice["token_ids"] == [*say("ok"), END]
    chunks = events((await memory.complete([1, 2], return_token_ids=True, stream=True)).text)
    assert chunks[0]["choices"][0]["prompt_token_ids"] == [1, 2]


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], None, ["ok", ""], [[1], []], {}, 5])
async def test_empty_prompts(memory: Memory, prompt):
    response = await memory.complete(prompt)
    assert response.json()["error"]["param"].startswith("prompt")
    assert response.status_code == 400
    assert memory.engine.requests == []


@pytest.mark.parametrize("prompt", [" ", "\u0000", "x"])
async def test_small_prompts(memory: Memory, prompt):
    assert (await memory.complete(prompt)).json()["usage"]["prompt_tokens"] == 1


async def test_empty_text_starts_from_bos_where_there_is_one():
    engine = ScriptedEngine(make_tokenizer(adds_bos=True))
    async with memory_client(make_app(engine)) as http:
        assert (await http.post("/v1/completions", json={"model": MODEL, "prompt": ""})).status_code == 200
    assert engine.requests[0].prompt_token_ids == (BOS,)


@pytest.mark.parametrize(
    ("prompt", "wrong"),
    [
        ([VOCAB_SIZE], str(VOCAB_SIZE)),
        ([-1], "-1"),
        ([2**40], str(2**40)),
        ([True], "True"),
        ([1.5], "1.5"),
        ([1, [2]], "[2]"),
        ([[VOCAB_SIZE]], str(VOCAB_SIZE)),
        ([1, "a"], "'a'"),
        (["a", 1], "1"),
        ([[1], "a"], "'a'"),
        ([[1, None]], "null"),
    ],
)
async def test_wrong_token_ids_are_named(memory: Memory, prompt, wrong):
    response = await memory.complete(prompt)
    assert wrong in assert_error(response, 400)
    assert response.json()["error"]["param"].startswith("prompt")


async def test_last_token_of_the_vocabulary_is_taken(memory: Memory):
    assert (await memory.complete([VOCAB_SIZE - 1])).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_context_limit(memory: Memory, stream):
    fits = await memory.complete([1] * (CONTEXT - 1), max_tokens=1, stream=stream)
    assert fits.status_code == 200
    for length in (CONTEXT, CONTEXT + 1, 10 * CONTEXT):
        response = await memory.complete([1] * length, max_tokens=1, stream=stream)
        message = assert_error(response, 400, "prompt", "context_length_exceeded")
        assert str(length) in message
        assert str(CONTEXT) in message
        assert response.headers["content-type"] == "application/json"
    response = await memory.complete("start " + "x" * CONTEXT, stream=stream)
    assert str(CONTEXT + 6) in assert_error(response, 400, "prompt", "context_length_exceeded")
    assert len(memory.engine.requests) == 1


async def test_certainly_too_long_text_is_not_encoded(memory: Memory, monkeypatch):
    monkeypatch.setattr(type(memory.engine.tokenizer), "encode_batch", None)
    response = await memory.complete("word " * 400_000)
    assert "at least" in assert_error(response, 400, "prompt", "context_length_exceeded")


async def test_long_text_is_encoded_off_the_event_loop(memory: Memory, monkeypatch):
    """While a long prompt is being encoded, probes and other requests are answered."""
    encoding, go_on = threading.Event(), threading.Event()
    kind = type(memory.engine.tokenizer)
    real = kind.encode_batch

    def slow(self, texts, **options):
        if len(texts[0]) > 4096:
            encoding.set()
            assert go_on.wait(60)
        return real(self, texts, **options)

    monkeypatch.setattr(kind, "encode_batch", slow)
    call = asyncio.create_task(memory.complete("x" * 5000))
    assert await asyncio.to_thread(encoding.wait, 60)
    assert (await memory.http.get("/health")).status_code == 200
    assert (await memory.complete("hi")).status_code == 200
    go_on.set()
    assert_error(await call, 400, "prompt", "context_length_exceeded")


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
async def test_a_large_body_is_read_off_the_event_loop(memory: Memory, monkeypatch, path: str) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slow(model, body, **options):
        if len(body) > 65536:
            reading.set()
            assert go_on.wait(60)
        return parse(model, body, **options)

    monkeypatch.setattr("ekiden.api.doors.door.parse", slow)
    body = {"model": MODEL, "prompt": "hi", **{f"unknown_{number}": 1 for number in range(5000)}}
    call = asyncio.create_task(memory.http.post(path, json=body))
    assert await asyncio.to_thread(reading.wait, 60)
    assert (await memory.http.get("/health")).status_code == 200
    assert (await memory.complete("hi")).status_code == 200
    go_on.set()
    assert (await call).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [("prompt", [[5]] * 4000), ("prompt", ["x"] * 4000), ("logit_bias", dict.fromkeys(map(str, range(4000)), "x"))],
    ids=["token lists", "texts", "biases"],
)
async def test_what_has_too_many_entries_is_not_looked_through(memory: Memory, field: str, value: Any) -> None:
    response = await memory.http.post("/v1/completions", json={"model": MODEL, "prompt": "hi", field: value})
    assert "has 4000 entries; at most" in assert_error(response, 400, field)
