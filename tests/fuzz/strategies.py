"""What the fuzzer sends: bodies that are valid, nearly valid or invalid, and malformed HTTP."""

import json
from typing import Any

from hypothesis import strategies as st

from ekiden.api.doors.chat import ChatRequest
from ekiden.api.doors.completions import CompletionRequest
from ekiden.api.doors.messages import MessagesRequest
from ekiden.api.doors.responses import ResponsesRequest

TEXT = st.text(max_size=12) | st.sampled_from(["", "hi", "<|im_start|>", "\x00", "日本語🌶️", "a" * 3000, "\u202eabc"])
ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer"]), "content": TEXT},
    optional={"name": TEXT, "tool_call_id": TEXT, "refusal": TEXT},
)

SCHEMA: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"a": {"enum": ["x", "日"]}}, "required": ["a"]},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        {"$defs": {"q": {"$ref": "#/$defs/q"}}, "$ref": "#/$defs/q"},
        {"type": "string", "pattern": "^[ab]{2}$"},
        {"enum": []},
    ]
)
BLOCKS = st.lists(st.fixed_dictionaries({"type": st.sampled_from(["text", "image", "tool_result"]), "text": TEXT}))


def right_fields(vocab_size: int) -> dict[str, st.SearchStrategy[Any]]:
    """Fields whose values are allowed, at least one by one."""
    token = st.integers(0, vocab_size - 1)
    return {
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0.01, 1),
        "top_k": st.integers(-1, 50),
        "min_p": st.floats(0, 1),
        "n": st.integers(1, 4),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "stop": TEXT | st.lists(TEXT, max_size=4),
        "stop_token_ids": st.lists(token, max_size=3),
        "logit_bias": st.dictionaries(token.map(str), st.floats(-100, 100), max_size=3),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.1, 3),
        "min_tokens": st.integers(0, 6),
        "ignore_eos": st.booleans(),
        "include_stop_str_in_output": st.booleans(),
        "return_token_ids": st.booleans(),
        "prompt_logprobs": st.integers(0, 5),
        "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
        "priority": st.integers(-5, 5),
        "guided_choice": st.lists(TEXT, min_size=1, max_size=3),
        "guided_regex": st.sampled_from(["[a-c]{1,4}", "日*", "(x|y)+", "(", "a{1,100000}"]),
        "guided_json": SCHEMA,
        "response_format": st.builds(_json_schema, SCHEMA),
    }


def _json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}


def _tool(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


@st.composite
def door_body(draw: st.DrawFn, model: str, path: str) -> dict[str, Any]:
    """A request of another protocol; sometimes one field has any value."""
    model_of, limit = (MessagesRequest, "max_tokens") if "messages" in path else (ResponsesRequest, "max_output_tokens")
    made: dict[str, Any] = {"model": model, "stream": draw(st.booleans()), limit: draw(st.integers(1, 8))}
    schema, text = draw(SCHEMA), draw(TEXT)
    if model_of is MessagesRequest:
        made["messages"] = [{"role": "user", "content": draw(TEXT | TEXT | BLOCKS)}]
        tool: dict[str, Any] = {"name": "f", "input_schema": schema}
        more: dict[str, Any] = {"system": text, "tools": [tool], "stop_sequences": [text]}
        more["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    else:
        made["input"] = draw(TEXT | TEXT | st.lists(MESSAGE, min_size=1, max_size=3))
        more = {"instructions": text, "tools": [{"type": "function", "name": "f", "parameters": schema}]}
        more["text"] = {"format": {"type": "json_schema", "name": "a", "schema": schema}}
    for name in draw(st.lists(st.sampled_from(sorted(more)), max_size=1)):
        made[name] = more[name]
    if draw(st.integers(0, 3)) == 0:
        name = draw(st.sampled_from(sorted(model_of.model_fields)) | TEXT)
        if name not in (limit, "stream"):
            made[name] = draw(ODD)
    return made


@st.composite
def body(draw: st.DrawFn, vocab_size: int, model: str, *, chat: bool, stream: bool | None = None) -> dict[str, Any]:
    """A request with a few fields; sometimes one of them has any value."""
    fields = right_fields(vocab_size)
    made: dict[str, Any] = {"model": model, "max_tokens": draw(st.integers(1, 8))}
    if chat:
        made["messages"] = draw(st.lists(MESSAGE, min_size=1, max_size=3))
        fields |= {"logprobs": st.booleans(), "top_logprobs": st.integers(0, 5)}
        fields |= {"tools": st.lists(SCHEMA.map(_tool), max_size=2)}
        fields |= {"tool_choice": st.sampled_from(["none", "auto", "required"])}
    else:
        token = st.integers(0, vocab_size - 1)
        made["prompt"] = draw(TEXT | st.lists(token, min_size=1, max_size=40) | st.lists(TEXT, min_size=1, max_size=3))
        fields |= {"logprobs": st.integers(0, 5), "echo": st.booleans(), "best_of": st.integers(1, 5)}
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=4, unique=True)):
        made[name] = draw(fields[name])
    made["stream"] = draw(st.booleans()) if stream is None else stream
    if draw(st.integers(0, 3)) == 0:
        known = ChatRequest.model_fields if chat else CompletionRequest.model_fields
        name = draw(st.sampled_from(sorted(known)) | TEXT)
        if name not in ("max_tokens", "max_completion_tokens", "n", "best_of", "stream"):
            made[name] = draw(ODD)
    return made


@st.composite
def pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The data, split into a few pieces."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def in_http(path: str, content: dict[str, Any]) -> bytes:
    """The bytes of a request that closes its connection."""
    data = json.dumps(content).encode()
    kind = "content-type: application/json"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\n{kind}\r\ncontent-length: {len(data)}\r\nconnection: close\r\n\r\n"
    return head.encode() + data


@st.composite
def mangled(draw: st.DrawFn, path: str, content: dict[str, Any]) -> bytes:
    """An HTTP request with one thing changed."""
    head, _, data = in_http(path, content).partition(b"\r\n\r\n")
    headers = head.decode().split("\r\n")
    kind = draw(st.sampled_from(["none", "bytes", "length", "header", "cut", "chunked", "twice", "line"]))
    if kind == "length":
        headers[3] = f"content-length: {draw(st.sampled_from(['-1', '0', 'x', '9' * 30, str(len(data) - 1), '1, 2']))}"
    elif kind == "header":
        name = draw(st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=12))
        headers.insert(draw(st.integers(1, 4)), f"{name}: {'v' * draw(st.sampled_from([0, 1, 70_000]))}")
    elif kind == "line":
        headers[0] = draw(st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=40))
    elif kind == "chunked":
        headers[3] = "transfer-encoding: chunked"
        size = draw(st.sampled_from([b"%x" % len(data), b"ffffffffffffffffff", b"-1", b"zz", b""]))
        data = size + b"\r\n" + data + b"\r\n0\r\n\r\n"
    whole = "\r\n".join(headers).encode("latin-1") + b"\r\n\r\n" + data
    if kind == "bytes":
        at = draw(st.integers(0, len(whole) - 1))
        whole = whole[:at] + draw(st.binary(max_size=6)) + whole[at + draw(st.integers(0, 6)) :]
    elif kind == "cut":
        whole = whole[: draw(st.integers(0, len(whole)))]
    elif kind == "twice":
        whole += whole
    return whole
