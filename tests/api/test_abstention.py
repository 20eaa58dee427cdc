"""What a client is told when its deadline cannot be met."""

import pytest

from ekiden.state.request import Estimate, FinishReason, Refusal, RefusalReason
from tests.api.conftest import Memory, assert_error

ESTIMATE = Estimate(2.0, (3.0, 4.0, 6.0), (3.5, 4.5, 7.0), (5.0, 8.0, 20.0), 1.0)
TOLD = {
    "deadline_seconds": 2.0,
    "queue_seconds": {"p10": 3.0, "p50": 4.0, "p90": 6.0},
    "first_token_seconds": {"p10": 3.5, "p50": 4.5, "p90": 7.0},
    "e2e_seconds": {"p10": 5.0, "p50": 8.0, "p90": 20.0},
}


def refuse(memory: Memory, reason: RefusalReason, after: float | None) -> None:
    refusal = Refusal(reason=reason, message="because", retry_after=after, estimate=ESTIMATE)
    memory.engine.refuse = lambda request: refusal


@pytest.mark.parametrize("stream", [True, False])
async def test_a_busy_server_says_when_to_come_back(memory: Memory, stream: bool):
    refuse(memory, RefusalReason.DEADLINE_TOO_BUSY, 3.0)
    response = await memory.chat(stream=stream)
    assert_error(response, 503, code="deadline_too_busy")
    assert response.headers["retry-after"] == "3"
    assert response.json()["error"]["estimate"] == TOLD


async def test_a_deadline_that_is_too_short_for_any_server_is_not_to_be_sent_again(memory: Memory):
    refuse(memory, RefusalReason.DEADLINE_TOO_SHORT, None)
    response = await memory.complete()
    assert_error(response, 408, code="deadline_too_short")
    assert response.headers["x-should-retry"] == "false"
    assert "retry-after" not in response.headers
    assert response.json()["error"]["estimate"] == TOLD
    assert response.json()["error"]["type"] == "timeout_error"


async def test_anthropics_protocol_tells_the_estimate_too(memory: Memory):
    refuse(memory, RefusalReason.DEADLINE_TOO_BUSY, 3.0)
    body = {"model": "toy/model", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    response = await memory.http.post("/v1/messages", json=body)
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "overloaded_error"
    assert response.json()["error"]["estimate"] == TOLD


@pytest.mark.parametrize("extended", [True, False])
async def test_one_that_is_given_up_in_the_queue_is_an_error_whatever_its_client_takes(memory: Memory, extended: bool):
    """There is nothing of its answer to take."""
    if extended:
        memory.http.headers["x-ekiden-finish-reasons"] = "extended"
    memory.engine.end = {0: FinishReason.ABSTAINED}
    response = await memory.chat()
    assert_error(response, 503, code="deadline_too_busy")
    assert response.headers["retry-after"] == "1"
    assert "estimate" not in response.json()["error"]
    assert memory.engine.requests[-1].takes_partial == extended


async def test_other_errors_tell_no_estimate(memory: Memory):
    memory.engine.refuse = lambda request: Refusal(reason=RefusalReason.TENANT_RATE, message="because")
    assert (await memory.chat()).json()["error"].keys() == {"message", "type", "param", "code"}
