"""``/v1/embeddings``, ``/v1/score`` and ``/v1/rerank`` over the real engine core and the fake model."""

import asyncio
import math
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

from ekiden.api.prompts import BEFORE_DOCUMENT, BEFORE_QUERY, OF_QUERY
from ekiden.backends.fake import HIDDEN_SIZE
from ekiden.state.request import Pooling
from tests.api.conftest import Memory, assert_error
from tests.api.real_core import CONTEXT, RealCore, real_core
from tests.api.scripted import MODEL, VOCAB_SIZE, say
from tests.fake_answers import likely_tokens, pooled_states

TEXT = "a text of some length"
Vector = npt.NDArray[np.float64]


@pytest.fixture
async def core() -> AsyncIterator[RealCore]:
    async with real_core() as made:
        yield made
        await made.clean()


async def embed(core: RealCore | Memory, given: Any = TEXT, **fields: Any) -> httpx.Response:
    return await core.http.post("/v1/embeddings", json={"model": MODEL, "input": given, **fields})


async def score(core: RealCore, **fields: Any) -> httpx.Response:
    return await core.http.post("/v1/score", json={"model": MODEL, **fields})


async def rerank(core: RealCore, query: Any = "q", documents: Any = ("a", "b"), **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "query": query, "documents": documents, **fields}
    return await core.http.post("/v1/rerank", json=body)


def raw(tokens: list[int], pooling: Pooling = Pooling.MEAN) -> Vector:
    return np.frombuffer(pooled_states(tokens, pooling), np.float32).astype(np.float64)


def unit(vector: Vector) -> Vector:
    return vector / np.linalg.norm(vector)


async def test_a_vector_of_each_input(core: RealCore) -> None:
    inputs = [TEXT, "another", "c"]
    response = await embed(core, inputs)
    assert response.status_code == 200, response.text
    body = response.json()
    assert (body["object"], body["model"]) == ("list", MODEL)
    assert [(each["object"], each["index"]) for each in body["data"]] == [("embedding", at) for at in range(3)]
    for each, text in zip(body["data"], inputs, strict=True):
        assert np.allclose(each["embedding"], unit(raw(say(text))), atol=1e-6)
        assert np.linalg.norm(each["embedding"]) == pytest.approx(1.0, abs=1e-6)
    total = sum(map(len, inputs))
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == total
    assert "completion_tokens" not in body["usage"]
    stats = core.engine.stats()
    assert (stats.prompt_tokens_total, stats.generation_tokens_total, stats.finished_total) == (total, 0, {"stop": 3})


@pytest.mark.parametrize("given", [TEXT, [TEXT], say(TEXT), [say(TEXT)]])
async def test_every_form_of_an_input(core: RealCore, given: Any) -> None:
    (found,) = (await embed(core, given)).json()["data"]
    assert np.allclose(found["embedding"], unit(raw(say(TEXT))), atol=1e-6)


async def test_base64_is_the_same_vector_in_32_bit_floats(core: RealCore) -> None:
    numbers = (await embed(core)).json()["data"][0]["embedding"]
    packed = (await embed(core, encoding_format="base64")).json()["data"][0]["embedding"]
    assert np.array_equal(np.frombuffer(b64decode(packed), "<f4"), np.array(numbers, np.float32))


async def test_the_last_state_and_plain_lengths(core: RealCore) -> None:
    found = (await embed(core, pooling="last", normalize=False)).json()["data"][0]["embedding"]
    assert found == raw(say(TEXT), Pooling.LAST).tolist()
    found = (await embed(core, pooling="mean", normalize=False)).json()["data"][0]["embedding"]
    assert found == raw(say(TEXT)).tolist()


@pytest.mark.parametrize("count", [1, 3, HIDDEN_SIZE])
async def test_fewer_dimensions_are_the_first_ones_at_unit_length_again(core: RealCore, count: int) -> None:
    found = (await embed(core, dimensions=count)).json()["data"][0]["embedding"]
    assert np.allclose(found, unit(raw(say(TEXT))[:count]), atol=1e-6)


@pytest.mark.parametrize("wanted", [0, -1, HIDDEN_SIZE + 1, "4", 2.0])
async def test_dimensions_that_there_are_not(core: RealCore, wanted: Any) -> None:
    message = assert_error(await embed(core, dimensions=wanted), 400, "dimensions")
    assert str(wanted) in message
    assert core.engine.stats().prompt_tokens_total == 0


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ("", "input"),
        (["a", ""], "input[1]"),
        ([], "input"),
        ([[]], "input[0]"),
        ([[1], [VOCAB_SIZE]], "input[1]"),
        (5, "input"),
        ([1, "a"], "input[1]"),
        (["a"] * 2049, "input"),
    ],
)
async def test_inputs_that_cannot_be_read(core: RealCore, given: Any, param: str) -> None:
    assert_error(await embed(core, given), 400, param)


@pytest.mark.parametrize(
    "fields",
    [
        {"encoding_format": "int8"},
        {"pooling": "cls"},
        {"normalize": "yes"},
        {"truncate_prompt_tokens": 0},
        {"truncate_prompt_tokens": -2},
        {"truncate_prompt_tokens": True},
    ],
)
async def test_fields_that_cannot_work(core: RealCore, fields: dict[str, Any]) -> None:
    assert_error(await embed(core, **fields), 400, next(iter(fields)))


async def test_an_input_may_fill_the_context_and_no_more(core: RealCore) -> None:
    assert (await embed(core, "x" * CONTEXT)).status_code == 200
    message = assert_error(await embed(core, ["a", "x" * (CONTEXT + 1)]), 400, "input[1]", "context_length_exceeded")
    assert f"has {CONTEXT + 1} tokens; the context of this model is {CONTEXT} tokens" in message
    unread = await embed(core, "x" * 100 * CONTEXT)
    assert "answer" not in assert_error(unread, 400, "input", "context_length_exceeded")


@pytest.mark.parametrize(("kept", "tokens"), [(5, 5), (-1, CONTEXT), (CONTEXT + 100, None)])
async def test_a_longer_input_is_cut_when_asked(core: RealCore, kept: int, tokens: int | None) -> None:
    text = "x" * CONTEXT + "the end"
    response = await embed(core, text, truncate_prompt_tokens=kept)
    if tokens is None:
        assert_error(response, 400, "input", "context_length_exceeded")
        return
    (found,) = response.json()["data"]
    assert np.allclose(found["embedding"], unit(raw(say(text)[-tokens:])), atol=1e-6)
    assert response.json()["usage"]["prompt_tokens"] == tokens


async def test_a_model_whose_states_cannot_be_had(memory: Memory) -> None:
    assert memory.engine.card.hidden_size is None
    assert_error(await embed(memory), 400, "model", "model_not_supported")


async def test_another_model(core: RealCore) -> None:
    body = {"model": "other", "input": "a"}
    assert_error(await core.http.post("/v1/embeddings", json=body), 404, "model", "model_not_found")


async def test_beside_answers_both_are_what_they_are_alone(core: RealCore) -> None:
    async def answer() -> Any:
        response = await core.complete("hello", max_tokens=40, ignore_eos=True, temperature=0)
        return response.json()["choices"][0]["text"]

    async def vectors() -> Any:
        return (await embed(core, [TEXT * 20, "b"])).json()["data"]

    alone = await answer(), await vectors()
    together = await asyncio.gather(answer(), vectors(), answer(), vectors())
    assert tuple(together) == alone * 2


async def test_fields_without_effect_are_named(core: RealCore) -> None:
    response = await embed(core, user="u", input_type="query", later=1)
    assert response.headers["x-ekiden-ignored-fields"] == "user, input_type, later"
    response = await rerank(core, documents=["a", {"text": "b", "title": "c"}], max_chunks_per_doc=3)
    assert response.headers["x-ekiden-ignored-fields"] == "max_chunks_per_doc, documents[].title"


# --- scores


def likelihood(document: str, query: str) -> float:
    """By the fake model's logits: 1 for the token that it says, 0 for the others."""
    context = say(BEFORE_DOCUMENT + document + BEFORE_QUERY)
    tokens = context + say(OF_QUERY + query)
    total = math.log(math.e + VOCAB_SIZE - 1)
    said = likely_tokens(tokens, VOCAB_SIZE, len(context))
    return math.exp(sum(one - total for one in said) / len(said))


DOCUMENTS = ["first text", "the second", "", "one more text", "and the last"]


async def test_documents_in_order_of_their_likelihood(core: RealCore) -> None:
    response = await rerank(core, "which?", DOCUMENTS)
    assert response.status_code == 200, response.text
    results = response.json()["results"]
    expected = {index: likelihood(text, "which?") for index, text in enumerate(DOCUMENTS)}
    assert {each["index"]: each["relevance_score"] for each in results} == pytest.approx(expected, rel=1e-5)
    scores = [each["relevance_score"] for each in results]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < value <= 1 for value in scores)
    assert all(each["document"] == {"text": DOCUMENTS[each["index"]]} for each in results)
    frame = len(BEFORE_DOCUMENT + BEFORE_QUERY + OF_QUERY + "which?")
    tokens = sum(frame + len(text) for text in DOCUMENTS)
    assert response.json()["usage"]["total_tokens"] == tokens
    assert core.engine.stats().finished_total == {"stop": len(DOCUMENTS)}


async def test_only_the_best_and_without_their_texts(core: RealCore) -> None:
    whole = (await rerank(core, documents=DOCUMENTS)).json()["results"]
    cut = (await rerank(core, documents=DOCUMENTS, top_n=2, return_documents=False)).json()["results"]
    assert cut == [{key: each[key] for key in ("index", "relevance_score")} for each in whole[:2]]
    assert len((await rerank(core, documents=DOCUMENTS, top_n=99)).json()["results"]) == len(DOCUMENTS)


async def test_documents_as_objects_and_at_the_other_path(core: RealCore) -> None:
    plain = await rerank(core, "which?", DOCUMENTS)
    body = {"model": MODEL, "query": "which?", "documents": [{"text": text} for text in DOCUMENTS]}
    found = await core.http.post("/rerank", json=body)
    assert found.json()["results"] == plain.json()["results"]


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
async def test_scores_of_pairs(core: RealCore, names: tuple[str, str]) -> None:
    async def scores(queries: Any, documents: Any) -> list[float]:
        response = await score(core, **{names[0]: queries, names[1]: documents})
        assert response.status_code == 200, response.text
        data = response.json()["data"]
        assert [each["index"] for each in data] == list(range(len(data)))
        return [each["score"] for each in data]

    first = likelihood("a text", "who?")
    assert await scores("who?", "a text") == pytest.approx([first], rel=1e-5)
    assert await scores("who?", ["a text", "b"]) == pytest.approx([first, likelihood("b", "who?")], rel=1e-5)
    pairs = await scores(["who?", "why?"], ["a text", "b"])
    assert pairs == pytest.approx([first, likelihood("b", "why?")], rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text_2": "a"}, "text_1"),
        ({"text_1": "a"}, "text_2"),
        ({"text_1": "a", "queries": "b", "text_2": "a"}, "queries"),
        ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ({"text_1": ["a", "b"], "text_2": "a"}, "text_1"),
        ({"text_1": "", "text_2": "a"}, "text_1"),
        ({"text_1": ["a", ""], "text_2": ["a", "b"]}, "text_1[1]"),
        ({"text_1": "a", "text_2": []}, "text_2"),
        ({"text_1": "a", "text_2": ["b", 5]}, "text_2[1]"),
        ({"text_1": "a", "text_2": ["b"] * 2049}, "text_2"),
    ],
)
async def test_pairs_that_cannot_be_scored(core: RealCore, fields: dict[str, Any], param: str) -> None:
    assert_error(await score(core, **fields), 400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": ""}, "query"),
        ({"query": ["a"]}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": ["a", 5]}, "documents[1]"),
        ({"documents": ["a", {"title": "b"}]}, "documents[1].text"),
        ({"rank_fields": ["title"]}, "rank_fields"),
        ({"documents": [{"text": 5}]}, "documents[0].text"),
        ({"top_n": 0}, "top_n"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
    ],
)
async def test_rankings_that_cannot_be_made(core: RealCore, fields: dict[str, Any], param: str) -> None:
    assert_error(await rerank(core, **fields), 400, param)


async def test_a_document_that_is_too_long_is_named_or_cut(core: RealCore) -> None:
    long = "x" * CONTEXT
    message = assert_error(await rerank(core, documents=["a", long]), 400, "documents[1]", "context_length_exceeded")
    assert f"documents[1] has {CONTEXT} tokens" in message
    assert "max_tokens_per_doc" in message
    found = (await rerank(core, documents=["a", long], max_tokens_per_doc=10)).json()["results"]
    scores = {each["index"]: each["relevance_score"] for each in found}
    assert scores[1] == pytest.approx(likelihood("x" * 10, "q"), rel=1e-5)


async def test_special_tokens_in_a_document_are_plain_text(core: RealCore) -> None:
    found = (await rerank(core, documents=["<|im_end|>"])).json()
    assert found["usage"]["total_tokens"] == len(BEFORE_DOCUMENT + "<|im_end|>" + BEFORE_QUERY + OF_QUERY + "q")


async def test_documents_are_found_again_in_the_prefix_cache(core: RealCore) -> None:
    document = "a document of several blocks, " * 4
    first = (await rerank(core, "who?", [document])).json()
    again = (await rerank(core, "why, then?", [document])).json()
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 112
    assert again["results"][0]["relevance_score"] == pytest.approx(likelihood(document, "why, then?"), rel=1e-5)


async def test_a_deadline_ends_it() -> None:
    """Of an input that takes two steps, the first of which goes on until the deadline has passed."""

    def wait(step: int) -> None:
        time.sleep(0.02)

    async with real_core(before_step=wait) as core:
        body = {"model": MODEL, "input": "x" * 1000}
        response = await core.http.post("/v1/embeddings", json=body, headers={"x-request-deadline-ms": "10"})
        assert_error(response, 408, code="deadline")
        await core.clean()
