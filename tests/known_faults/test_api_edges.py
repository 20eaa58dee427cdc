"""Odd values, empty things and limits of the API: a 4xx that names the field, and a server that goes on."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.api.conftest import Memory
from tests.api.real_core import CONTEXT, RealCore
from tests.api.scripted import END, MODEL, VOCAB_SIZE, say
from tests.known_faults.conftest import (
    CHAT,
    PATHS,
    TEXT,
    alive,
    assert_shape,
    own,
    request_of,
    streamed,
    text_of,
    whole,
)

FREE = {"logit_bias": {str(END): -100}}
"""Answers that go on to their limit."""


async def refused(http: httpx.AsyncClient, path: str, body: Any, names: str = "") -> None:
    response = await http.post(path, json=body)
    assert response.status_code == 400, response.text
    assert names in assert_shape(response)


class _Nothing:
    """A field that is left out."""

    def __repr__(self) -> str:
        return "nothing"  # names of tests must be the same in every process


NOTHING = _Nothing()


@pytest.mark.parametrize("value", [NOTHING, None, 1, 10**12], ids=["absent", "null", "one", "huge"])
async def test_pb_26_token_limits_that_are_fine(core: RealCore, value: object) -> None:
    before = await alive(core)
    for path in PATHS:
        limit = {} if value is NOTHING else {"max_tokens": value}
        usage = (await whole(core.http, path, **limit, **FREE))["usage"]
        left = CONTEXT - usage["prompt_tokens"]
        assert usage["completion_tokens"] == (left if value != 1 else 1)
    assert await alive(core) == before


@pytest.mark.parametrize("value", [0, -1, "5", 5.0, 5.5, True, [5]])
async def test_pb_26_token_limits_that_are_not(core: RealCore, value: Any) -> None:
    for path in PATHS:
        await refused(core.http, path, request_of(path, max_tokens=value), "max_tokens")
    await alive(core)


async def test_pb_26_a_limit_of_zero_with_echo_gives_the_prompt_back(core: RealCore) -> None:
    answer = await whole(core.http, TEXT, text="abc", max_tokens=0, echo=True, logprobs=1)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert answer["usage"]["completion_tokens"] == 0
    await alive(core)


async def test_pb_26_the_newer_name_wins(core: RealCore) -> None:
    for fields in ({"max_completion_tokens": 3}, {"max_completion_tokens": 3, "max_tokens": 7}):
        assert (await whole(core.http, CHAT, **fields, **FREE))["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], None, NOTHING, ["ok", ""], [[1], []]], ids=repr)
async def test_pb_27_prompts_without_a_token(core: RealCore, prompt: Any) -> None:
    """The toy tokenizer adds no BOS, so these have nothing to start from; a list is refused as a whole."""
    body = {"model": MODEL} if prompt is NOTHING else {"model": MODEL, "prompt": prompt}
    await refused(core.http, TEXT, body, "prompt")
    await alive(core)


@pytest.mark.parametrize("prompt", [" ", "\u0000"])
async def test_pb_27_odd_prompts_with_a_token(core: RealCore, prompt: str) -> None:
    assert (await whole(core.http, TEXT, text=prompt, max_tokens=2))["usage"]["prompt_tokens"] == 1
    await alive(core)


@pytest.mark.parametrize(
    ("messages", "fine"),
    [
        ([], False), (NOTHING, False), (None, False),
        ([{"role": "user", "content": ""}], True), ([{"role": "system", "content": "be kind"}], True),
        ([{"role": "user"}], False), ([{"role": "user", "content": []}], False),
        ([{"role": "user", "content": None}], False),
    ],
    ids=repr,
)  # fmt: skip
async def test_pb_27_conversations_without_content(core: RealCore, messages: Any, fine: bool) -> None:
    body = {"model": MODEL, "max_tokens": 2} if messages is NOTHING else {"model": MODEL, "messages": messages}
    if fine:
        assert (await core.http.post(CHAT, json={**body, "max_tokens": 2})).status_code == 200
    else:
        await refused(core.http, CHAT, body, "messages")
    await refused(core.http, CHAT, {})
    await alive(core)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"logit_bias": {str(VOCAB_SIZE): 5}}, str(VOCAB_SIZE)), ({"logit_bias": {"-1": 5}}, "-1"),
        ({"logit_bias": {"x": 1}}, "'x'"), ({"logit_bias": {"5": 1e9}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "101"), ({"logit_bias": {"5": None}}, "logit_bias"),
        ({"logit_bias": {str(index): 1 for index in range(100_000)}}, "logit_bias"),
        ({"prompt": [VOCAB_SIZE]}, str(VOCAB_SIZE)), ({"prompt": [-1]}, "-1"), ({"prompt": [2**40]}, str(2**40)),
        ({"prompt": [True]}, "prompt[0]"), ({"prompt": [1.5]}, "1.5"), ({"prompt": [[VOCAB_SIZE]]}, str(VOCAB_SIZE)),
        ({"prompt": [1, "a"]}, "'a'"), ({"stop_token_ids": [VOCAB_SIZE]}, str(VOCAB_SIZE)),
        ({"stop_token_ids": [-1]}, "-1"), ({"stop_token_ids": [VOCAB_SIZE], "min_tokens": 1}, str(VOCAB_SIZE)),
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
async def test_pb_29_tokens_that_do_not_exist(core: RealCore, fields: dict[str, Any], names: str) -> None:
    solo = await streamed(core.http, TEXT, max_tokens=30, **FREE)
    beside = asyncio.create_task(streamed(core.http, TEXT, max_tokens=30, **FREE))
    await refused(core.http, TEXT, request_of(TEXT, **fields), names)
    assert [text_of(TEXT, choice) for choice in own(await beside)] == [text_of(TEXT, choice) for choice in own(solo)]
    await alive(core)


async def test_pb_29_the_last_token_exists(core: RealCore) -> None:
    last = VOCAB_SIZE - 1
    for fields in ({"prompt": [last]}, {"logit_bias": {str(last): 100}}, {"stop_token_ids": [last]}):
        body = request_of(TEXT, max_tokens=3, **fields)
        assert (await core.http.post(TEXT, json=body)).status_code == 200
    await alive(core)


@pytest.mark.parametrize("stream", [True, False])
async def test_pb_31_prompts_at_and_over_the_limit(core: RealCore, stream: bool) -> None:
    marker = [77]
    fits = await whole(core.http, TEXT, prompt=marker + [1] * (CONTEXT - 2), max_tokens=1)
    assert fits["usage"]["prompt_tokens"] == CONTEXT - 1
    ends = await whole(core.http, TEXT, prompt=marker + [1] * (CONTEXT - 11), max_tokens=100, **FREE)
    assert ends["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": CONTEXT - 10, "completion_tokens": 10, "total_tokens": CONTEXT, "prompt_tokens_details": None
    }  # fmt: skip
    assert ends["choices"][0]["finish_reason"] == "length"
    for length in (CONTEXT, CONTEXT + 1, 10 * CONTEXT):
        bodies = {
            TEXT: request_of(TEXT, prompt=[77] + [1] * (length - 1), max_tokens=1, stream=stream),
            CHAT: request_of(CHAT, text="m" * length, max_tokens=1, stream=stream),
        }
        for path, body in bodies.items():
            response = await core.http.post(path, json=body)
            message = assert_shape(response)
            assert response.status_code == 400
            assert response.headers["content-type"] == "application/json"
            assert response.json()["error"]["code"] == "context_length_exceeded"
            assert str(CONTEXT) in message
            assert path == CHAT or str(length) in message
    await alive(core)


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def conversation(**assistant: Any) -> list[dict[str, Any]]:
    said = {"role": "assistant", "content": None, "tool_calls": [CALL], **assistant}
    return [
        {"role": "user", "content": "w?"},
        {key: value for key, value in said.items() if value is not NOTHING},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]


async def test_pb_34_null_absent_and_empty_content_are_one(core: RealCore) -> None:
    answers = [
        await whole(core.http, CHAT, messages=conversation(content=content), max_tokens=6)
        for content in (None, "", NOTHING)
    ]
    assert len({answer["usage"]["prompt_tokens"] for answer in answers}) == 1
    assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 1


@pytest.mark.parametrize("arguments", ["null", "", "not json", "[" * 5000])
async def test_pb_34_odd_arguments_are_text_or_refused(core: RealCore, arguments: str) -> None:
    messages = conversation(tool_calls=[{**CALL, "function": {"name": "f", "arguments": arguments}}])
    response = await core.http.post(CHAT, json=request_of(CHAT, messages=messages, max_tokens=2))
    assert response.status_code in (200, 400)
    await alive(core)


@pytest.mark.parametrize("calls", [None, []])
async def test_pb_34_no_calls(core: RealCore, calls: Any) -> None:
    messages = conversation(content="x", tool_calls=calls)[:2]
    assert (await core.http.post(CHAT, json=request_of(CHAT, messages=messages, max_tokens=2))).status_code == 200


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [None], ["abcde"] * 65, ["x"] * 10_000])
async def test_r_18_stops_that_would_match_at_once_or_are_too_many(core: RealCore, stop: Any) -> None:
    for path in PATHS:
        await refused(core.http, path, request_of(path, stop=stop), "stop")


@pytest.mark.parametrize("stop", [None, []])
async def test_r_18_no_stop(core: RealCore, stop: Any) -> None:
    assert (await whole(core.http, TEXT, stop=stop, max_tokens=7, **FREE))["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize("prompts", [["a", "b", "c"], [[97], [98, 98]], [f"p{index}" for index in range(1000)]])
async def test_r_20_every_prompt_of_a_list_is_answered(memory: Memory, prompts: list[Any]) -> None:
    n = 1 if len(prompts) > 100 else 2
    memory.engine.script = lambda request: [*request.prompt_token_ids, END]
    texts = [prompt if isinstance(prompt, str) else bytes(prompt).decode() for prompt in prompts]
    expected = [text for text in texts for _ in range(n)]
    answer = await whole(memory.http, TEXT, prompt=prompts, n=n)
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert answer["usage"]["prompt_tokens"] == sum(map(len, texts))
    chunks = await streamed(memory.http, TEXT, prompt=prompts, n=n, stream_options={"include_usage": True})
    joined: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            joined[choice["index"]] = joined.get(choice["index"], "") + choice["text"]
    assert [joined[index] for index in range(len(expected))] == expected
    assert [chunk["usage"] for chunk in chunks if chunk["usage"]] == [answer["usage"]]


async def test_r_23_null_is_absent_unknown_is_named_and_known_is_applied(core: RealCore) -> None:
    optional = ["temperature", "top_p", "n", "stop", "seed", "logit_bias", "stream", "stream_options", "tools", "user"]
    plain = await whole(core.http, CHAT, max_tokens=5)
    nulls = await whole(core.http, CHAT, max_tokens=5, **dict.fromkeys(set(optional) - {"temperature"}))
    assert nulls["choices"] == plain["choices"]
    for path in PATHS:
        response = await core.http.post(path, json=request_of(path, zzz=1))
        assert response.headers["x-ekiden-ignored-fields"] == "zzz"
    repeats = {"logit_bias": {"65": 3}, "max_tokens": 6, "ignore_eos": True}
    without = await whole(core.http, TEXT, **repeats, frequency_penalty=0)
    against = await whole(core.http, TEXT, **repeats, frequency_penalty=2)
    assert without["choices"][0]["text"] == "AAAAAA"
    assert against["choices"][0]["text"] != "AAAAAA"


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", 129, 512, 10**6, 10**18])
async def test_pb_16_so_many_choices_are_refused_at_once(core: RealCore, n: Any) -> None:
    for path in PATHS:
        await refused(core.http, path, request_of(path, n=n, max_tokens=4), "n is")
    assert core.engine.stats().steps_total == 0


async def test_pb_16_the_most_choices_there_may_be(core: RealCore) -> None:
    """They finish, and short requests beside them are answered meanwhile."""
    many = asyncio.create_task(whole(core.http, TEXT, n=128, max_tokens=20, **FREE))
    while not (core.engine.stats().num_waiting or many.done()):
        await asyncio.sleep(0)
    await whole(core.http, TEXT, max_tokens=2)
    answer = await many
    assert len(answer["choices"]) == 128
    assert len({choice["text"] for choice in answer["choices"]}) == 1  # greedy: all the same
    await refused(core.http, TEXT, request_of(TEXT, best_of=2, n=4), "best_of")
    await refused(core.http, TEXT, request_of(TEXT, best_of=8, stream=True), "best_of")


async def test_r_08_answers_of_many_requests_are_never_mixed_up(core: RealCore) -> None:
    """Each must say its own marker; a fifth of the clients leave."""

    async def one(index: int) -> str | None:
        call = asyncio.create_task(
            whole(core.http, TEXT, text=f"request {index}", guided_choice=[f"marker-{index:03}"], max_tokens=20)
        )
        if index % 5 == 0:
            await asyncio.sleep(0.002 * (index % 7))
            call.cancel()
        try:
            return text_of(TEXT, (await call)["choices"][0])
        except asyncio.CancelledError:
            return None

    said = await asyncio.gather(*map(one, range(200)))
    for index, text in enumerate(said):
        assert text == f"marker-{index:03}" or (text is None and index % 5 == 0)
    assert said[0] is None, "the first leaves at once"


async def test_r_12_a_limit_of_all_there_is_for_many_at_once(core: RealCore) -> None:
    """Eight answers that would each fill the pool: all end at the limit, and the server goes on."""
    fields = {"max_tokens": CONTEXT, "ignore_eos": True}
    answers = await asyncio.gather(*(whole(core.http, TEXT, text=f"{index}", **fields) for index in range(8)))
    assert {answer["choices"][0]["finish_reason"] for answer in answers} == {"length"}
    assert {answer["usage"]["total_tokens"] for answer in answers} == {CONTEXT}
    await alive(core)


def test_the_toy_tokenizer_is_what_these_tests_take_it_for() -> None:
    assert say("hi") == [104, 105]
