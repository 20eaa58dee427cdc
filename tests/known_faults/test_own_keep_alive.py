"""A stream is never silent for longer than its interval, whatever it waits for; on a clock that jumps."""

import asyncio
import itertools
import json
from typing import Any

import pytest

from ekiden.config import Config, ServerConfig
from ekiden.state.request import FinishReason, Refusal, RefusalReason, RequestUpdate
from tests.api.scripted import END, MODEL, ScriptedEngine, ScriptedStream, make_app, make_tokenizer, say
from tests.virtual_loop import run_virtually

INTERVAL = 1.0
COMMENT = b": keep-alive\n\n"
Sent = list[tuple[float, bytes]]


class SlowStream(ScriptedStream):
    """Each update comes after a pause of the engine's: the first after a long queue and a long prompt."""

    async def __anext__(self) -> RequestUpdate:
        assert isinstance(self._engine, SlowEngine)
        await asyncio.sleep(self._engine.pauses[min(self._given, len(self._engine.pauses) - 1)])
        return await super().__anext__()


class SlowEngine(ScriptedEngine):
    pauses = (8.3, 0.4, 0.7, 2.6, 0.99, 1.01)

    def generate(self, request: Any) -> SlowStream:
        self.requests.append(request)
        return SlowStream(self, request)


async def stream(engine: ScriptedEngine, **fields: Any) -> tuple[int, Sent]:
    """The status and what was sent, with its times."""
    app = make_app(engine, Config(server=ServerConfig(stream_keep_alive=INTERVAL)))
    body = json.dumps({"model": MODEL, "prompt": "hi", "stream": True, **fields}).encode()
    status, sent, asked = 0, Sent(), asyncio.get_running_loop().time
    got = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not got:
            await asyncio.Event().wait()
        return got.pop()

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)
        if message["type"] == "http.response.body":
            sent.append((asked(), message["body"]))

    path = "/v1/completions"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": [(b"content-type", b"application/json")], "http_version": "1.1", "scheme": "http"}
    await app(scope, receive, send)
    return status, sent


def slow() -> ScriptedEngine:
    return SlowEngine(make_tokenizer(), lambda request: [*say("six..."), END])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3},
        {"prompt": ["a", "b"]},
        {"logprobs": 1},
        {"echo": True},
        {"echo": True, "max_tokens": 0},
        {"echo": True, "max_tokens": 0, "logprobs": 1},
        {"stop": "six...!"},  # all of it is held back to the end
    ],
    ids=json.dumps,
)
def test_own_10_a_comment_breaks_every_silence_from_acceptance_on(fields: dict[str, Any]) -> None:
    status, sent = run_virtually(stream(slow(), **fields))
    assert status == 200
    times = [0.0, *(at for at, _ in sent)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) <= INTERVAL + 1e-6
    comments = [at for at, data in sent if data == COMMENT]
    assert comments[:8] == pytest.approx(range(1, 9))
    assert all(gap == pytest.approx(INTERVAL) for gap, (_, data) in zip(gaps, sent, strict=True) if data == COMMENT)
    assert sent[-1][1].endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("fields", [{}, {"echo": True, "max_tokens": 0}], ids=json.dumps)
def test_own_10_what_ends_within_the_interval_has_its_own_status(fields: dict[str, Any]) -> None:
    engine = ScriptedEngine(make_tokenizer())
    engine.refuse = lambda request: Refusal(reason=RefusalReason.QUEUE_FULL_REQUESTS, message="full")
    status, sent = run_virtually(stream(engine, **fields))
    assert status == 503
    assert COMMENT not in [data for _, data in sent]


def test_own_10_an_end_after_comments_is_an_event() -> None:
    engine = slow()
    engine.end[0] = FinishReason.ERROR
    status, sent = run_virtually(stream(engine))
    assert status == 200
    assert [data for _, data in sent[:8]] == [COMMENT] * 8
    assert b'"code":"engine_error"' in sent[-1][1]
