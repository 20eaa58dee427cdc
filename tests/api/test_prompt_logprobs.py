"""Log-probabilities of prompts (``prompt_logprobs``, ``echo``) and ``best_of``, over the real engine core."""

import asyncio
import math
from typing import Any

import pytest

from ekiden.config import CacheConfig, Config, SchedulerConfig
from ekiden.state.request import RequestUpdate, TokenLogprobs
from tests.api.conftest import Memory, assert_error, events
from tests.api.real_core import BLOCK, real_core
from tests.api.scripted import BOS, END, MODEL, VOCAB_SIZE, say
from tests.fake_answers import next_token

HIGH = 1.0 - math.log(math.e + VOCAB_SIZE - 1)
LOW = HIGH - 1.0
"""What the model without weights gives the token it means, and each of the others."""

PROMPT = [(7 * i) % 200 for i in range(5 * BLOCK)]


def likely(prompt: list[int]) -> list[float]:
    """What each token of a prompt but the first has."""
    return [HIGH if next_token(prompt[:i], VOCAB_SIZE) == prompt[i] else LOW for i in range(1, len(prompt))]


async def test_prompt_logprobs():
    prompt = PROMPT[:10]
    prompt.append(next_token(prompt, VOCAB_SIZE))
    async with real_core() as core:
        choice = (await core.complete(prompt, prompt_logprobs=2, max_tokens=1)).json()["choices"][0]
    given = choice["prompt_logprobs"]
    assert given[0] is None
    assert len(given) == len(prompt)
    values = [entry[str(token)]["logprob"] for entry, token in zip(given[1:], prompt[1:], strict=True)]
    assert values == pytest.approx(likely(prompt))
    assert given[-1][str(prompt[-1])] == {
        "logprob": pytest.approx(HIGH), "rank": 1, "decoded_token": given[-1][str(prompt[-1])]["decoded_token"]
    }  # fmt: skip
    assert all(2 <= len(entry) <= 3 for entry in given[1:])
    assert choice["logprobs"] is None


async def test_rank_counts_all_that_are_likelier():
    async with real_core() as core:
        choice = (await core.complete([5, 6], prompt_logprobs=0, max_tokens=1)).json()["choices"][0]
    assert choice["prompt_logprobs"] == [
        None, {"6": {"logprob": pytest.approx(LOW), "rank": 6 + 2, "decoded_token": "\x06"}}
    ]  # fmt: skip


async def test_in_chat():
    async with real_core() as core:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "temperature": 0}
        answer = (await core.http.post("/v1/chat/completions", json={**body, "prompt_logprobs": 1})).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert [given is None for given in answer["prompt_logprobs"]] == [True] + [False] * (
        len(answer["prompt_logprobs"]) - 1
    )


@pytest.mark.parametrize("length", [1, 2, BLOCK, BLOCK + 1, 5 * BLOCK])
@pytest.mark.parametrize("chunk", [BLOCK, 512])
async def test_every_length_and_chunk(length, chunk):
    scheduler = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=chunk + 36 if chunk == 512 else 4 + 2 * BLOCK)
    config = Config(scheduler=scheduler, cache=CacheConfig(block_size=BLOCK))
    async with real_core(config) as core:
        plain = (await core.complete(PROMPT[:length], max_tokens=4, temperature=0)).json()
        for _ in range(2):  # the second time the prompt lies in the prefix cache
            asked = core.complete(PROMPT[:length], max_tokens=4, temperature=0, prompt_logprobs=0)
            beside = [core.complete(PROMPT[:length], max_tokens=4, temperature=0) for _ in range(3)]
            answer, *others = [each.json() for each in await asyncio.gather(asked, *beside)]
            given = answer["choices"][0].pop("prompt_logprobs")
            values = [entry[str(token)]["logprob"] for entry, token in zip(given[1:], PROMPT[1:length], strict=True)]
            assert values == pytest.approx(likely(PROMPT[:length]))
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            assert all(each["choices"] == plain["choices"] for each in (answer, *others))
        await core.clean()


async def test_after_a_swap_and_after_computing_again():
    """A pool so small that prefills are interrupted: each position is still told once."""
    config = Config(
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=4 + 2 * BLOCK),
        cache=CacheConfig(block_size=BLOCK),
    )
    async with real_core(config, num_blocks=9) as core:
        calls = [
            core.complete(PROMPT[i : i + 3 * BLOCK], max_tokens=40, temperature=0, ignore_eos=True, prompt_logprobs=0)
            for i in range(4)
        ]
        for index, response in enumerate(await asyncio.gather(*calls)):
            given = response.json()["choices"][0]["prompt_logprobs"]
            prompt = PROMPT[index : index + 3 * BLOCK]
            values = [entry[str(token)]["logprob"] for entry, token in zip(given[1:], prompt[1:], strict=True)]
            assert values == pytest.approx(likely(prompt))
        assert core.engine.stats().preemptions_total > 0
        await core.clean()


@pytest.mark.parametrize("value", [-1, 21, 1.5, True, "1"])
async def test_wrong_values(memory: Memory, value):
    assert_error(await memory.complete(prompt_logprobs=value), 400, "prompt_logprobs")


async def test_not_streamed(memory: Memory):
    for call in (memory.complete, memory.chat):
        assert_error(await call(prompt_logprobs=1, stream=True), 400, "prompt_logprobs")


def flat(choices: list[Any]) -> dict[str, list[Any]]:
    """The log-probability objects of a stream's chunks, one after another."""
    keys = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    objects = [choice["logprobs"] for choice in choices if choice["logprobs"] is not None]
    return {key: [value for each in objects for value in each[key]] for key in keys}


@pytest.mark.parametrize("prompt", ["héllo", "a<|im_end|>b", [*say("hé"), END, 120], [BOS, *say("x")]])
async def test_echo_with_logprobs(prompt):
    async with real_core() as core:
        fields = {"echo": True, "logprobs": 2, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
        whole = (await core.complete(prompt, return_token_ids=True, **fields)).json()["choices"][0]
        chunks = events((await core.complete(prompt, stream=True, **fields)).text)
        plain = (await core.complete(prompt, **{**fields, "echo": False})).json()["choices"][0]
        alone = (await core.complete(prompt, **{**fields, "max_tokens": 0})).json()
        streamed_alone = events((await core.complete(prompt, stream=True, **{**fields, "max_tokens": 0})).text)
    told, tokens = whole["logprobs"], whole["prompt_token_ids"]
    count = len(tokens)
    assert told["token_logprobs"][0] is None
    assert told["top_logprobs"][0] is None
    assert told["token_logprobs"][1:count] == pytest.approx(likely(tokens))
    assert all(2 <= len(best) <= 3 for best in told["top_logprobs"][1:])
    assert told["tokens"][count:] == plain["logprobs"]["tokens"]
    assert told["token_logprobs"][count:] == plain["logprobs"]["token_logprobs"]
    assert whole["text"].endswith(plain["text"])
    for index, token in enumerate(told["tokens"]):
        if not token.startswith("bytes:"):
            assert whole["text"].startswith(token, told["text_offset"][index])
    streamed = [choice for chunk in chunks for choice in chunk["choices"]]
    assert flat(streamed) == told
    assert "".join(choice["text"] for choice in streamed) == whole["text"]
    only = alone["choices"][0]
    assert only["logprobs"] == {key: values[:count] for key, values in told.items()}
    assert only["text"] == whole["text"].removesuffix(plain["text"])
    assert (only["finish_reason"], alone["usage"]["completion_tokens"]) == ("length", 0)
    assert flat([choice for chunk in streamed_alone for choice in chunk["choices"]]) == only["logprobs"]


async def test_best_of_keeps_the_likeliest(memory: Memory):
    """Of four answers whose tokens are scripted, the two with the highest sum, the last token included."""
    totals = [-3.0, -1.0, -2.0, -1.0]
    stream_of = memory.engine.generate

    def generate(request):
        stream = stream_of(request)
        number = int(request.request_id.rpartition("-")[2])
        real = stream.__anext__

        async def scored() -> RequestUpdate:
            update = await real()
            value = totals[number % 4] if update.finish is not None else 0.0
            return RequestUpdate(
                update.request_id, update.token_ids, update.finish, None, (TokenLogprobs(logprob=value),)
            )

        return Scored(stream, scored)

    memory.engine.generate = generate  # type: ignore[method-assign]
    memory.engine.script = lambda request: [*say(f"{request.request_id.rpartition('-')[2]}"), END]
    answer = (await memory.complete(["a", "b"], n=2, best_of=4, seed=5)).json()
    assert [choice["text"] for choice in answer["choices"]] == ["1", "3", "5", "7"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 8 * 2  # of all that were generated
    assert [request.sampling.seed for request in memory.engine.requests] == [5, 6, 7, 8] * 2


class Scored:
    """A stream whose updates come from another function."""

    def __init__(self, stream, scored) -> None:
        self._stream = stream
        self._scored = scored

    def __aiter__(self):
        return self

    async def __anext__(self) -> RequestUpdate:
        update: RequestUpdate = await self._scored()
        return update

    async def aclose(self) -> None:
        await self._stream.aclose()


@pytest.mark.parametrize(
    "fields", [{"best_of": 1, "n": 2}, {"best_of": 2, "stream": True}, {"best_of": 0}, {"best_of": 129}]
)
async def test_best_of_that_cannot_be(memory: Memory, fields):
    assert_error(await memory.complete(**fields), 400, "best_of")


async def test_best_of_that_is_n(memory: Memory):
    text = (await memory.complete(best_of=2, n=2, stream=True)).text
    assert {choice["index"] for chunk in events(text) for choice in chunk["choices"]} == {0, 1}
    assert_error(await memory.complete(["x"] * 100, best_of=100), 400, "best_of")
