"""What clients get wrong: always a 4xx in one shape that names the field, never a 500."""

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ekiden.api.doors.chat import ChatRequest
from ekiden.api.doors.completions import CompletionRequest
from ekiden.api.doors.messages import CountRequest, MessagesRequest
from ekiden.api.doors.responses import ResponsesRequest
from ekiden.api.errors import ApiError
from ekiden.api.schema_base import Strict, parse
from tests.api.conftest import Memory, assert_error
from tests.api.scripted import MODEL, VOCAB_SIZE

JSON = {"content-type": "application/json"}
PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nope", b"null", b"[]", b'"text"', b"5", b"[" * 20_000, b'{"a":' * 20_000, b'{"model": "\xff"}',
        b'{"temperature": NaN}', b'{"n": ' + b"9" * 5000 + b"}", b'{"model": "\\ud800"}', b"\x00", b"\xef\xbb\xbf{}",
    ],
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
async def test_malformed_bodies(memory: Memory, path, body):
    assert_error(await memory.http.post(path, content=body, headers=JSON), 400, code="invalid_json")


@pytest.mark.parametrize("path", PATHS)
async def test_empty_object(memory: Memory, path):
    assert_error(await memory.http.post(path, json={}), 400, code="missing_parameter")


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_other_content_types(memory: Memory, content_type):
    headers = {} if content_type is None else {"content-type": content_type}
    response = await memory.http.post("/v1/completions", content=b'{"model":"m","prompt":"x"}', headers=headers)
    assert "application/json" in assert_error(response, 415)


async def test_content_type_with_parameters(memory: Memory):
    content = json.dumps({"model": MODEL, "prompt": "x"}).encode()
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert (await memory.http.post("/v1/completions", content=content, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", "hot"), ("temperature", True), ("temperature", 1e308),
        ("top_p", 0), ("top_p", 1.1), ("min_p", -1), ("top_k", -2), ("top_k", 1.5),
        ("n", 0), ("n", -1), ("n", 1.5), ("n", "2"), ("n", 129), ("n", 512), ("n", 10**6), ("n", 10**18),
        ("seed", 2**63), ("seed", 1.5), ("presence_penalty", 2.1), ("frequency_penalty", -3),
        ("repetition_penalty", 0), ("min_tokens", -1), ("stream", "yes"), ("stream", 1), ("stream_options", []),
        ("stop", ""), ("stop", [""]), ("stop", ["a", ""]), ("stop", [None]), ("stop", ["abcde"] * 65), ("stop", 5),
        ("stop", ["x"] * 10_000), ("stop", "x" * 2000),
        ("stop_token_ids", [VOCAB_SIZE]), ("stop_token_ids", [-1]), ("stop_token_ids", ["a"]), ("stop_token_ids", 3),
        ("stop_token_ids", [1] * 2000), ("logit_bias", {str(VOCAB_SIZE): 5}), ("logit_bias", {"-1": 5}),
        ("logit_bias", {"x": 1}), ("logit_bias", {"5": 1e9}), ("logit_bias", {"5": None}), ("logit_bias", {"5": True}),
        ("logit_bias", {str(i): 1 for i in range(100_000)}), ("logit_bias", [1]),
        ("response_format", {"type": "xml"}), ("response_format", "text"),
        ("priority", 2**31), ("priority", 0.5), ("ignore_eos", 1), ("extra_body", [1]),
        ("max_tokens", -1),
    ],
    ids=lambda value: repr(value)[:24],
)  # fmt: skip
async def test_wrong_values_are_named(memory: Memory, field, value):
    for response in (await memory.complete(**{field: value}), await memory.chat(**{field: value})):
        assert field in assert_error(response, 400)
        assert response.json()["error"]["param"].startswith(field)
        assert len(response.text) < 600
    assert memory.engine.requests == []


@pytest.mark.parametrize("field", sorted(set(ChatRequest.model_fields) - {"model", "messages"}))
async def test_null_is_absent_in_chat(memory: Memory, field):
    assert (await memory.chat(**{field: None})).status_code == 200


@pytest.mark.parametrize("field", sorted(set(CompletionRequest.model_fields) - {"model", "prompt"}))
async def test_null_is_absent_in_completions(memory: Memory, field):
    assert (await memory.complete(**{field: None})).status_code == 200


async def test_stop_that_means_none(memory: Memory):
    nothing: list[Any] = [None, []]
    for stop in nothing:
        assert (await memory.complete(stop=stop)).status_code == 200
        assert memory.engine.requests[-1].sampling.stop == ()


REFUSED = [
    (model, name) for model in (ChatRequest, CompletionRequest) for name, fate in model.fates.items() if fate.refused
]


@pytest.mark.parametrize(("model", "field"), REFUSED, ids=[name for _, name in REFUSED])
async def test_refused_fields_say_why(memory: Memory, model, field):
    call = memory.chat if model is ChatRequest else memory.complete
    message = assert_error(await call(**{field: [{"type": "function"}]}), 400, field, "unsupported_parameter")
    assert model.fates[field].words in message
    assert (await call(**{field: None})).status_code == 200


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest, ResponsesRequest, CountRequest, MessagesRequest])
def test_fields_with_a_fate_are_not_read(model: type[Strict]):
    """A declared field would never come to its fate."""
    assert model.fates
    assert not set(model.fates) & set(model.model_fields)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"), (None, "messages"), ("hi", "messages"), ([5], "messages[0]"), ([{}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"), ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": ["x"]}], "messages[1].content[0]"),
        ([{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[0].tool_calls[0].function.name"),
        ([{"role": "user", "content": "x"}] * 5000, "messages"),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
async def test_wrong_messages_are_named(memory: Memory, messages, param):
    body = {"model": MODEL, "messages": messages}
    assert_error(await memory.http.post("/v1/chat/completions", json=body), 400, param)


async def test_messages_that_are_fine(memory: Memory):
    for messages in ([{"role": "user", "content": ""}], [{"role": "system", "content": "x"}]):
        assert (await memory.chat(messages)).status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        "nope", "", "../../etc/passwd", "/etc/hostname", "someorg/some-model", MODEL + " ", MODEL.upper(), MODEL + "\0",
        "x" * 100_000,
    ],
    ids=lambda name: name[:12],
)  # fmt: skip
async def test_unknown_models(memory: Memory, name):
    for response in (await memory.complete(model=name), await memory.chat(model=name)):
        message = assert_error(response, 404, "model", "model_not_found")
        assert MODEL in message
        assert len(message) < 300


@pytest.mark.parametrize("name", [None, 5, ["x"]])
async def test_model_of_the_wrong_type(memory: Memory, name):
    assert_error(await memory.complete(model=name), 400, "model")


@pytest.mark.parametrize("value", ["0", "-5", "soon", "1.5", "", "9" * 30, "٣"])
async def test_wrong_deadline(memory: Memory, value):
    headers = [("x-request-deadline-ms", value.encode())]
    response = await memory.http.post("/v1/completions", json={"model": MODEL, "prompt": "x"}, headers=headers)
    assert_error(response, 400, "x-request-deadline-ms")


def test_many_faults_make_one_error():
    """A body of a million faults costs one error object, not a million."""
    many = {f"k{i}": 1 for i in range(100_000)}
    bodies: list[dict[str, Any]] = [many, {"model": MODEL, "messages": 5, **many}]
    bodies += [{"model": MODEL, "messages": [{}] * 4000}, {"model": MODEL, "prompt": ["x"] + [5] * 100_000}]
    for body in bodies:
        with pytest.raises(ApiError) as error:
            parse(ChatRequest, json.dumps(body).encode())
        assert len(error.value.message) < 300


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_json_is_parsed_or_refused(model, data):
    needed = {"model": MODEL, "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    fields = needed | data.draw(
        st.dictionaries(st.sampled_from(sorted(model.model_fields)) | st.text(max_size=6), JSON_VALUES, max_size=6)
    )
    status = 200
    try:
        _, ignored = parse(model, json.dumps(fields).encode())
        for field in ignored:
            assert re.fullmatch(r"[A-Za-z0-9_.?=\[\]-]+", field.path), "it stands in a header"
    except ApiError as error:
        status = error.status
        json.loads(error.body())
    assert status in (200, 400)


def test_errors_repeat_no_long_keys_and_no_deep_places():
    """A key of a client's is part of the place that an error names."""
    huge = "k" * 5000
    deep: Any = [0] * 10
    for _ in range(150):
        deep = {"deeper": [deep]}
    half = "\ud800"
    bodies: list[dict[str, Any]] = [
        {huge: [half]},
        {"messages": [{huge: {huge: half}}]},
        {"metadata": {huge: 5}},
        {"x": [deep, {"a": half}]},
    ]
    bodies += [{"logit_bias": {huge: 1}}, {"tools": [{"type": "function", "function": {"name": "f", huge: half}}]}]
    for body in bodies:
        with pytest.raises(ApiError) as error:
            parse(ChatRequest, json.dumps({"model": MODEL, "messages": [], **body}).encode(), refuse_unknown=True)
        assert len(error.value.message) + len(error.value.param or "") < 1200, body
