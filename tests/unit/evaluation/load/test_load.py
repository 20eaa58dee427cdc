"""The load generator against a scripted server on loopback, which also answers badly on purpose."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ekiden.evaluation.load.loops import closed_loop, completion_requests, open_loop
from ekiden.evaluation.load.sse_client import Connection
from ekiden.evaluation.load.target import Target, TargetError
from ekiden.measure.figures import RequestRecord
from tests.unit.evaluation.loopback import Answer, LoopbackServer

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(payload: object) -> bytes:
    return b"data: " + (payload if isinstance(payload, bytes) else json.dumps(payload).encode()) + b"\n\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def token(text: str) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": None}], "usage": None})


def usage(prompt: int, completion: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


def whole_answer(texts: list[str]) -> list[bytes]:
    return [*(token(text) for text in texts), usage(7, len(texts)), event(b"[DONE]")]


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Answer], Awaitable[tuple[LoopbackServer, Target]]]]:
    running: list[LoopbackServer] = []

    async def start(answer: Answer) -> tuple[LoopbackServer, Target]:
        running.append(LoopbackServer(answer))
        return running[-1], Target.parse(await running[-1].start())

    yield start
    for server in running:
        await server.stop()


async def send(writer: asyncio.StreamWriter, pieces: list[bytes]) -> None:
    """Chunked body, one write for each piece, each in its own turn of the loop."""
    writer.write(HEAD)
    for piece in pieces:
        writer.write(chunk(piece))
        await writer.drain()
        await asyncio.sleep(0)
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def ask_once(target: Target) -> RequestRecord:
    run = await closed_loop(
        target, completion_requests(target, "m", [[1, 2]], output_tokens=3), concurrency=1, timeout=60
    )
    return run.records[0]


async def test_a_whole_answer_is_counted_from_its_usage(serve):
    async def answer(path, body, writer):
        await send(writer, whole_answer(["a", "", 'say "text":"x" \n data: [DONE]', "c"]))

    server, target = await serve(answer)
    record = await ask_once(target)
    assert record.failure is None
    assert (record.prompt_tokens, record.output_tokens) == (7, 4)
    # The empty text is no content, and quoted look-alikes inside a text are not counted.
    assert len(record.event_times) == 3
    assert record.event_times == sorted(record.event_times)
    assert record.intended <= record.sent <= record.event_times[0] <= record.end
    assert server.bodies[0]["prompt"] == [1, 2]
    assert server.bodies[0]["stream_options"] == {"include_usage": True}


async def test_events_cut_anywhere_are_counted_once(serve):
    async def answer(path, body, writer):
        stream = HEAD + b"".join(chunk(piece) for piece in whole_answer(["ab"] * 5)) + b"0\r\n\r\n"
        for position in range(0, len(stream), 7):
            writer.write(stream[position : position + 7])
            await writer.drain()
            await asyncio.sleep(0)

    _, target = await serve(answer)
    record = await ask_once(target)
    assert record.failure is None
    assert len(record.event_times) == 5
    assert record.output_tokens == 5


async def test_chat_content_counts_and_the_role_chunk_does_not(serve):
    async def answer(path, body, writer):
        deltas = [{"role": "assistant", "content": ""}, {"content": "hi"}, {}]
        events = [event({"choices": [{"delta": delta}]}) for delta in deltas]
        await send(writer, [*events, event(b"[DONE]")])

    _, target = await serve(answer)
    record = await ask_once(target)
    assert len(record.event_times) == 1
    assert record.output_tokens == 1


async def refuse(path, body, writer):
    error = b'{"error":{"message":"full"}}'
    writer.write(b"HTTP/1.1 503 Busy\r\ncontent-length: %d\r\n\r\n" % len(error) + error)


async def error_event(path, body, writer):
    await send(writer, [token("a"), event({"error": {"message": "engine died"}}), event(b"[DONE]")])


async def break_off(path, body, writer):
    writer.write(HEAD + chunk(token("a")))
    await writer.drain()
    writer.close()


async def no_done(path, body, writer):
    await send(writer, [token("a")])


async def close_at_once(path, body, writer):
    writer.close()


async def no_http(path, body, writer):
    writer.write(b"220 mail.example.org ESMTP\r\n\r\n")


async def no_chunk_length(path, body, writer):
    writer.write(HEAD + b"zz\r\n" + b"".join(whole_answer(["a"])) + b"0\r\n\r\n")


async def chunk_longer_than_it_says(path, body, writer):
    writer.write(HEAD + b"5\r\n" + b"".join(whole_answer(["a"])) + b"0\r\n\r\n")


async def status_without_number(path, body, writer):
    writer.write(HEAD.replace(b"200", b"OK!") + chunk(token("a")) + b"0\r\n\r\n")


async def end_within_the_head(path, body, writer):
    writer.write(HEAD[:30])
    await writer.drain()
    writer.close()


async def refused_and_closed(path, body, writer):
    writer.write(b"HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\n\r\n{}")
    await writer.drain()
    writer.close()


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (refuse, "http_503"),
        (error_event, "error_event"),
        (break_off, "truncated"),
        (no_done, "truncated"),
        (close_at_once, "truncated"),
        (end_within_the_head, "truncated"),
        (refused_and_closed, "http_429"),
        (no_http, "malformed"),
        (no_chunk_length, "malformed"),
        (chunk_longer_than_it_says, "malformed"),
        (status_without_number, "malformed"),
    ],
)
async def test_anything_but_a_whole_answer_is_a_failure_of_its_kind(serve, answer, failure):
    _, target = await serve(answer)
    assert (await ask_once(target)).failure == failure


async def test_after_a_malformed_answer_the_connection_is_not_used_again(serve):
    async def answer(path, body, writer):
        await (no_chunk_length if body["prompt"] == [0] else refuse)(path, body, writer)

    server, target = await serve(answer)
    run = await closed_loop(
        target, completion_requests(target, "m", [[0], [1], [2]], output_tokens=1), concurrency=1, timeout=60
    )
    assert [record.failure for record in run.records] == ["malformed", "http_503", "http_503"]
    assert server.connections == 2


async def test_a_last_line_without_its_break_counts(serve):
    async def answer(path, body, writer):
        text = b"".join(whole_answer(["a"])).rstrip()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))

    _, target = await serve(answer)
    assert (await ask_once(target)).failure is None


async def test_silence_ends_in_a_timeout(serve):
    async def answer(path, body, writer):
        writer.write(HEAD)

    server, target = await serve(answer)
    requests = completion_requests(target, "m", [[1], [2]], output_tokens=1)
    run = await closed_loop(target, requests, concurrency=1, timeout=0.05)
    assert [record.failure for record in run.records] == ["timeout"] * 2
    assert server.connections == 2, "a late answer must not be taken for the next one's"


async def test_a_connection_reset_in_the_middle_is_a_truncated_answer(serve):
    async def answer(path, body, writer):
        writer.write(HEAD + chunk(token("a")))
        await writer.drain()
        writer.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        writer.transport.abort()

    _, target = await serve(answer)
    record = await ask_once(target)
    assert record.failure == "truncated"
    assert record.end > record.sent


async def test_nobody_listening_is_a_failure_to_connect():
    listener = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    assert (await ask_once(Target.parse(f"127.0.0.1:{port}"))).failure == "connect"


async def test_closed_loop_keeps_its_concurrency_on_kept_alive_connections(serve):
    async def answer(path, body, writer):
        await send(writer, whole_answer(["a"]))

    server, target = await serve(answer)
    requests = completion_requests(target, "m", [[i] for i in range(12)], output_tokens=1)
    run = await closed_loop(target, requests, concurrency=3, timeout=60)
    assert [record.failure for record in run.records] == [None] * 12
    assert server.connections == 3
    assert server.most_open <= 3
    assert sorted(body["prompt"][0] for body in server.bodies) == list(range(12))
    assert run.duration > 0


async def test_open_loop_sends_when_due_whatever_the_server_does(serve):
    release = asyncio.Event()
    waiting = 0

    async def answer(path, body, writer):
        nonlocal waiting
        waiting += 1
        if waiting == 4:
            release.set()
        await release.wait()
        await send(writer, whole_answer(["a"]))

    _, target = await serve(answer)
    requests = completion_requests(target, "m", [[1]] * 4, output_tokens=1)
    run = await open_loop(target, requests, [0.0, 0.01, 0.02, 0.03], timeout=60)
    # A closed loop would never get past the first: no answer comes before all four have been asked.
    assert [record.failure for record in run.records] == [None] * 4
    first = run.records[0]
    assert [record.intended - first.intended for record in run.records] == pytest.approx([0.0, 0.01, 0.02, 0.03])
    assert all(record.sent >= record.intended for record in run.records)


async def test_a_connection_that_the_server_closes_is_not_used_again(serve):
    async def answer(path, body, writer):
        writer.write(HEAD.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        writer.write(b"".join(chunk(piece) for piece in whole_answer(["a"])) + b"0\r\n\r\n")

    server, target = await serve(answer)
    requests = completion_requests(target, "m", [[1]] * 3, output_tokens=1)
    run = await closed_loop(target, requests, concurrency=1, timeout=60)
    assert [record.failure for record in run.records] == [None] * 3
    assert server.connections == 3


async def test_a_connection_that_the_server_closed_while_it_was_idle_is_opened_anew(serve):
    async def answer(path, body, writer):
        await send(writer, whole_answer(["a"]))
        writer.close()  # without having said so

    server, target = await serve(answer)
    connection, records = Connection(target), [RequestRecord(intended=0.0) for _ in range(3)]
    for record, request in zip(records, completion_requests(target, "m", [[1]] * 3, output_tokens=1), strict=True):
        await connection.ask(request, record, timeout=60)
        await asyncio.sleep(0.05)
    await connection.close()
    assert [record.failure for record in records] == [None] * 3
    assert server.connections == 3


async def test_a_kept_connection_that_is_closed_without_a_word_is_opened_anew_once(serve):
    """Some servers close a connection after an answer without having said so, when the next request is on its way."""
    answered: set[asyncio.StreamWriter] = set()

    async def answer(path, body, writer):
        if body["prompt"] == [3] or writer in answered:
            writer.close()
            return
        answered.add(writer)
        await send(writer, whole_answer(["a"]))

    server, target = await serve(answer)
    requests = completion_requests(target, "m", [[1], [2], [3]], output_tokens=1)
    run = await closed_loop(target, requests, concurrency=1, timeout=60)
    assert [record.failure for record in run.records] == [None, None, "truncated"]
    assert [body["prompt"] for body in server.bodies] == [[1], [2], [2], [3], [3]]


async def test_a_body_without_length_ends_with_its_connection(serve):
    async def answer(path, body, writer):
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(whole_answer(["a", "b"])))
        await writer.drain()
        writer.close()

    _, target = await serve(answer)
    record = await ask_once(target)
    assert record.failure is None
    assert record.output_tokens == 2


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1"),
        ("https://[::1]/base", "https://[::1]/base/v1"),
    ],
)
def test_addresses_are_taken_with_or_without_v1(url, whole):
    assert Target.parse(url).url == whole


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://h:99999"])
def test_a_wrong_address_is_named(url):
    with pytest.raises(TargetError, match="url is "):
        Target.parse(url)


def test_the_key_travels_as_a_bearer_token():
    target = Target.parse("http://127.0.0.1:1", api_key="k")
    assert b"Authorization: Bearer k\r\n" in target.request_bytes("/completions", {})
