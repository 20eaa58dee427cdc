"""What the engine refuses, and calls that a server on its way out no longer takes."""

import pytest

from ekiden.engine.interface import EngineStats
from ekiden.state.request import Refusal, RefusalReason
from tests.api.conftest import Memory, assert_error, events


def refuse(memory: Memory, reason: RefusalReason, *, last_only: bool = False) -> None:
    refusal = Refusal(reason=reason, message="because", param="prompt")
    memory.engine.refuse = lambda request: None if last_only and not request.request_id.endswith("-1") else refusal


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "reason",
    [
        RefusalReason.INVALID,
        RefusalReason.PROMPT_EMPTY,
        RefusalReason.TOKEN_OUT_OF_VOCABULARY,
        RefusalReason.CONTEXT_LENGTH_EXCEEDED,
        RefusalReason.EXCEEDS_KV_CACHE,
    ],
)
async def test_client_faults(memory: Memory, reason, stream):
    refuse(memory, reason)
    assert assert_error(await memory.complete(stream=stream), 400, "prompt", reason.value) == "because"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "reason", [RefusalReason.QUEUE_FULL_REQUESTS, RefusalReason.QUEUE_FULL_TOKENS, RefusalReason.DRAINING]
)
async def test_no_capacity(memory: Memory, reason, stream):
    # 200 tokens a second so far and 3,000 waiting: 15 seconds.
    memory.engine.snapshot = EngineStats(
        waiting_tokens=3000, prompt_tokens_total=1500, generation_tokens_total=500, model_seconds_total=10.0
    )
    refuse(memory, reason)
    response = await memory.chat(stream=stream)
    assert_error(response, 503, code=reason.value)
    assert response.headers["retry-after"] == "15"


async def test_our_own_fault(memory: Memory):
    refuse(memory, RefusalReason.DUPLICATE_ID)
    assert_error(await memory.complete(), 500, code="duplicate_request_id")


@pytest.mark.parametrize("stream", [True, False])
async def test_one_refused_answer_refuses_the_call_and_ends_its_siblings(memory: Memory, stream):
    refuse(memory, RefusalReason.QUEUE_FULL_REQUESTS, last_only=True)
    memory.engine.script = lambda request: [1] * 50
    response = await memory.complete(["a", "b"], stream=stream)
    assert_error(response, 503, code="queue_full_requests")
    assert memory.engine.aborted == [memory.engine.requests[0].request_id]


async def test_draining(memory: Memory):
    memory.app.state.doors.generation.flight.draining = True
    response = await memory.chat(stream=True)
    assert_error(response, 503, code="draining")
    assert int(response.headers["retry-after"]) >= 1
    assert memory.engine.requests == []


async def test_keep_alive_comments_on_long_waits(memory: Memory):
    import asyncio

    memory.engine.gate = asyncio.Event()
    memory.app.state.doors.generation.keep_alive_seconds = 0.01
    call = asyncio.create_task(memory.chat(stream=True))
    await memory.engine.reached_gate.wait()
    loop = asyncio.get_running_loop()
    loop.call_later(0.05, memory.engine.gate.set)
    text = (await call).text
    assert text.startswith(": keep-alive\n\n")
    assert events(text)[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (RefusalReason.TENANT_QUEUE_FULL, 429),
        (RefusalReason.TENANT_RATE, 429),
        (RefusalReason.QUEUE_FULL_REQUESTS, 503),
        (RefusalReason.QUEUE_TOO_SLOW, 503),
    ],
)
@pytest.mark.parametrize(
    ("after", "seconds", "milliseconds"), [(1.5, "2", "1500"), (7.0, "7", "7000"), (0.0, "1", "1")]
)
async def test_retry_after_is_what_the_refusal_says(
    memory: Memory, reason, status, after, seconds, milliseconds, stream
):
    memory.engine.refuse = lambda request: Refusal(reason=reason, message="because", retry_after=after)
    response = await memory.chat(stream=stream)
    assert_error(response, status, code=reason.value)
    assert response.headers["retry-after"] == seconds
    assert response.headers["retry-after-ms"] == milliseconds


@pytest.mark.parametrize("reason", list(RefusalReason))
async def test_every_refusal_has_an_answer(memory: Memory, reason):
    refuse(memory, reason)
    response = await memory.complete()
    status = response.status_code
    ours = reason in (RefusalReason.DUPLICATE_ID, RefusalReason.INTERNAL_ERROR)
    hopeless = reason is RefusalReason.DEADLINE_TOO_SHORT
    assert status == 500 if ours else status == 408 if hopeless else status in (400, 429, 503)
    assert (response.headers.get("x-should-retry") == "false") == hopeless
    assert ("retry-after" in response.headers) == (status in (429, 503))
