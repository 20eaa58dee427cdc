"""The subject over HTTP, against a played server on loopback that notes what it is asked."""

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ekiden.evaluation.load.server_subject import ServerSubject
from ekiden.evaluation.load.streamed_answer import read_answer
from ekiden.evaluation.load.target import Target
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.workloads.offer import Kind, Offer, Workload
from tests.unit.evaluation.loopback import Answer, LoopbackServer

EASY = Objectives(ttft=6000.0, tpot=6000.0)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


class Played:
    """A loopback server on a thread of its own, because a subject runs an event loop of its own."""

    def __init__(self, answer: Answer) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.server = LoopbackServer(answer)
        self.target = Target.parse(self._run(self.server.start()))

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def close(self) -> None:
        self._run(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(60)
        self.loop.close()


@pytest.fixture
def play() -> Iterator[Callable[[Answer], Played]]:
    running: list[Played] = []

    def start(answer: Answer) -> Played:
        running.append(Played(answer))
        return running[-1]

    yield start
    for played in running:
        played.close()


def streamed(events: list[dict[str, Any]]) -> bytes:
    lines = [b"data: " + json.dumps(event).encode() for event in events] + [b"data: [DONE]"]
    body = b"\n\n".join(lines) + b"\n\n"
    return HEAD + b"content-length: %d\r\n\r\n" % len(body) + body


async def answer_in_full(path, body, writer):
    """As many tokens as are asked for: the limit, or one more than are forbidden to be the last."""
    count = body["max_tokens"] if body.get("ignore_eos") else body.get("min_tokens", 0) + 1
    events: list[dict[str, Any]] = [{"choices": [{"text": f"w{i} ", "token_ids": [i]}]} for i in range(count)]
    events.append({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": count}})
    writer.write(streamed(events))


def refuse(status: bytes, code: str) -> Answer:
    async def answer(path, body, writer):
        error = json.dumps({"error": {"message": "no", "code": code}}).encode()
        writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n" % (status, len(error)) + error)

    return answer


def workload(*offers: Offer, seconds: float = 0.1) -> Workload:
    return Workload(name="w", kind=Kind.NORMAL, seconds=seconds, offers=offers, made={}, sources={})


def offer(index: int, output: int, stated: int | None, **rest: Any) -> Offer:
    return Offer(id=f"r{index}", at=0.002 * index, output_tokens=output, max_tokens=stated, **rest)


def prompts_of(served: Workload) -> list[list[int]]:
    return [[1, 2, 3]] * len(served.offers)


def subject(played: Played, **rest: Any) -> ServerSubject:
    given: dict[str, Any] = {
        "objectives": EASY,
        "prompts": lambda served: [[1, 2, 3]] * len(served.offers),
        "end_token": 7,
    } | rest
    return ServerSubject(played.target, "m", **given)


def test_answers_have_the_offered_lengths_and_the_server_sees_the_stated_limits(play):
    played = play(answer_in_full)
    told: list[int] = []
    served = workload(offer(0, 3, 3), offer(1, 4, 50), offer(2, 5, None), offer(3, 1, None))
    run = subject(played, token_ids=True).serve(served, on_answer=lambda: told.append(1))
    assert [result.record.failure for result in run.results] == [None] * 4
    assert [result.token_ids for result in run.results] == [tuple(range(n)) for n in (3, 4, 5, 1)]
    assert run.results[0].text_digest == hashlib.sha256(b"w0 w1 w2 ").hexdigest()
    assert len(told) == 4, "the warm-up is nobody's answer"
    warm_up, asked = (
        played.server.bodies[:4],
        sorted(played.server.bodies[4:], key=lambda body: body.get("min_tokens", 0)),
    )
    assert all(body["prompt"] != [1, 2, 3] for body in warm_up)
    by_limit = {body.get("max_tokens"): body for body in asked if body.get("max_tokens")}
    assert by_limit[3]["ignore_eos"] is True
    assert "logit_bias" not in by_limit[3]
    assert by_limit[50]["min_tokens"] == 3
    assert by_limit[50]["logit_bias"] == {"7": 100.0}
    unlimited = [body for body in asked if "max_tokens" not in body]
    assert sorted(body.get("min_tokens", 0) for body in unlimited) == [0, 4]
    assert all(body["temperature"] == 0 for body in asked)


def test_times_count_from_the_start_of_the_run(play):
    run = subject(play(answer_in_full)).serve(workload(*(offer(i, 2, 2) for i in range(5))))
    records = [result.record for result in run.results]
    assert [record.intended for record in records] == pytest.approx([0.002 * i for i in range(5)])
    for record in records:
        assert record.intended <= record.sent <= record.event_times[0] <= record.end < 60.0
    assert run.seconds == pytest.approx(max(record.end for record in records))
    assert (run.arrival_seconds, run.loop, run.void, run.steps) == (0.1, "open", None, None)


def test_tenant_priority_and_deadline_travel(play):
    heads: list[str] = []
    played = play(answer_in_full)
    requests = subject(played)._requests(workload(offer(0, 2, 2, tenant="t", priority=4, deadline=1.5), offer(1, 2, 2)))
    heads = [request.partition(b"\r\n\r\n")[0].decode() for request in requests]
    assert "x-ekiden-tenant: t" in heads[0]
    assert "x-request-deadline-ms: 1500" in heads[0]
    assert json.loads(requests[0].partition(b"\r\n\r\n")[2])["priority"] == 4
    assert "x-ekiden-tenant" not in heads[1]
    assert "priority" not in json.loads(requests[1].partition(b"\r\n\r\n")[2])


def test_texts_are_sent_as_texts(play):
    played = play(answer_in_full)
    subject(played, prompts=lambda served: ["hello"], warm_up=0).serve(workload(offer(0, 2, 2)))
    assert played.server.bodies[0]["prompt"] == "hello"


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (b"503 Busy", "queue_full_requests", "refused_queue_full_requests"),
        (b"429 Slow", "tenant_rate", "refused_tenant_rate"),
        (b"408 Late", "deadline", "deadline"),
        (b"500 Broken", "internal", "http_500"),
    ],
)
def test_refusals_are_named_as_the_engine_would(play, status, code, kind):
    run = subject(play(refuse(status, code)), warm_up=0).serve(workload(offer(0, 2, 2)))
    (result,) = run.results
    assert result.record.failure == kind
    assert (result.token_ids, result.text_digest) == (None, None)


def test_an_answer_of_another_length_is_a_failure(play):
    async def too_short(path, body, writer):
        writer.write(streamed([{"choices": [{"text": "a"}]}, {"choices": [], "usage": {"completion_tokens": 1}}]))

    run = subject(play(too_short), warm_up=0).serve(workload(offer(0, 2, 2), offer(1, 1, 1)))
    assert [result.record.failure for result in run.results] == ["wrong_length", None]


def test_nobody_listening_fails_every_request(play):
    played = play(answer_in_full)
    nobody = ServerSubject(
        Target.parse("http://127.0.0.1:9"), "m", objectives=EASY, prompts=lambda served: [[1]], warm_up=0
    )
    assert [result.record.failure for result in nobody.serve(workload(offer(0, 2, 2))).results] == ["connect"]
    assert played.server.bodies == []


def test_with_cut_no_request_outlives_its_chance_to_be_good(play):
    async def silence(path, body, writer):
        writer.write(HEAD + b"\r\n")

    hopeless = Objectives(ttft=0.05, tpot=0.01)
    run = subject(play(silence), objectives=hopeless, cut=True, warm_up=0).serve(workload(offer(0, 2, 2)))
    assert run.results[0].record.failure == "timeout"


def test_a_closed_loop_is_labelled(play):
    played = play(answer_in_full)
    run = subject(played, concurrency=1, warm_up=0).serve(workload(*(offer(i, 2, 2) for i in range(4))))
    assert (run.loop, run.void) == ("closed", None)
    assert played.server.most_open == 1


def test_ctrl_c_leaves_no_connection_open(play):
    async def answer(path, body, writer):
        await (answer_in_full if len(played.server.bodies) == 1 else silence)(path, body, writer)

    async def silence(path, body, writer):
        writer.write(HEAD + b"\r\n")

    def interrupt() -> None:
        raise KeyboardInterrupt

    played = play(answer)
    with pytest.raises(KeyboardInterrupt):
        subject(played, warm_up=0).serve(workload(offer(0, 2, 2), offer(1, 2, 2)), on_answer=interrupt)


@pytest.mark.parametrize(
    ("body", "text", "ids", "counted"),
    [
        (b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n', "hi", None, None),
        (
            b'data: {"choices":[{"text":"a","token_ids":[1]}]}\ndata: {"choices":[{"token_ids":[2]}]}\n',
            "a",
            (1, 2),
            None,
        ),
        (b'data: no json\n\ndata: {"choices":[],"usage":{"completion_tokens":4}}\n', "", None, 4),
        (b"", "", None, None),
        (b"\xff\xfe", "", None, None),
    ],
)
def test_bodies_are_read_as_far_as_they_can_be(body, text, ids, counted):
    told = read_answer([body[:5], body[5:]])
    assert (told.text, told.token_ids, told.counted) == (text, ids, counted)
