"""The conversation's turns, and answers over HTTP from a scripted server."""

import json
import threading
from collections.abc import Callable, Generator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from ekiden.cli.chat import HELP, ChatSession
from ekiden.cli.remote_chat import remote_answers
from ekiden.errors import UserError


class Scripted:
    """Answers with the number of messages it was given; "fail" raises, "stop" is interrupted after two pieces."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, str]]] = []

    def answer(self, messages: list[dict[str, str]]) -> Generator[str]:
        self.asked.append([dict(message) for message in messages])
        text = messages[-1]["content"]
        if text == "fail":
            raise UserError("no such luck")
        yield "answer "
        yield str(len(messages))
        if text == "stop":
            raise KeyboardInterrupt
        yield "."


def talk(lines: list[str], system: str | None = None) -> tuple[Scripted, ChatSession, str, list[str]]:
    answerer = Scripted()
    written: list[str] = []
    notes: list[str] = []
    rest = iter(lines)

    def read() -> str:
        line = next(rest, None)
        if line is None:
            raise EOFError
        if line == "^C":
            raise KeyboardInterrupt
        return line

    session = ChatSession(answer=answerer.answer, read=read, write=written.append, note=notes.append, system=system)
    session.talk()
    return answerer, session, "".join(written), notes


def test_each_turn_carries_the_conversation_so_far():
    answerer, session, written, _ = talk(["hello", "", "and then?"])
    assert written == "answer 1.\nanswer 3.\n"
    assert [message["role"] for message in answerer.asked[1]] == ["user", "assistant", "user"]
    assert session.messages[-1] == {"role": "assistant", "content": "answer 3."}


def test_the_system_prompt_comes_first_and_survives_a_clear():
    answerer, _, _, notes = talk(["one", "/clear", "two"], system="be brief")
    assert [message["content"] for message in answerer.asked[1]] == ["be brief", "two"]
    assert "a new conversation" in notes


def test_an_answer_that_fails_leaves_no_trace_in_the_conversation():
    answerer, _, _, notes = talk(["fail", "hello"])
    assert "no such luck" in notes
    assert [message["content"] for message in answerer.asked[1]] == ["hello"]


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said():
    answerer, _, written, notes = talk(["stop", "go on"])
    assert written.startswith("answer 1\n")
    assert notes[0].startswith("stopped after")
    assert answerer.asked[1][1] == {"role": "assistant", "content": "answer 1"}


@pytest.mark.parametrize("line", ["/exit", "/quit", "^C"])
def test_the_chat_can_be_left(line):
    answerer, _, _, _ = talk([line, "never asked"])
    assert answerer.asked == []


def test_unknown_commands_show_the_known_ones():
    answerer, _, _, notes = talk(["/what"])
    assert notes == [HELP]
    assert answerer.asked == []


Reply = tuple[int, bytes]


@pytest.fixture
def server() -> Iterator[Callable[[Reply, Reply], tuple[str, list[Any]]]]:
    """``server(models, chat)`` starts a loopback server with these two replies; gives its address and what it got."""
    running: list[HTTPServer] = []

    def start(models: Reply, chat: Reply) -> tuple[str, list[Any]]:
        got: list[Any] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                got.append((self.path, self.headers.get("authorization")))
                self._reply(models)

            def do_POST(self) -> None:
                got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self._reply(chat)

            def _reply(self, reply: Reply) -> None:
                self.send_response(reply[0])
                self.send_header("content-length", str(len(reply[1])))
                self.end_headers()
                self.wfile.write(reply[1])

            def log_message(self, *arguments: object) -> None:
                """Quiet."""

        running.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=running[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{running[-1].server_address[1]}", got

    yield start
    for each in running:
        each.shutdown()
        each.server_close()


MODELS = (200, b'{"object":"list","data":[{"id":"m"}]}')


def chunks(*events: object) -> bytes:
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def ask(url: str, key: str | None = None) -> str:
    with remote_answers(url, key, {"max_tokens": 5}) as answer:
        return "".join(answer([{"role": "user", "content": "hi"}]))


def test_remote_answers_stream_from_the_first_model_listed(server):
    stream = chunks(
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "He"}}]},
        {"choices": [{"delta": {"content": "llo"}}]},
        {"choices": [], "usage": {}},
        "[DONE]",
    )
    url, got = server(MODELS, (200, stream))
    assert ask(url, "k") == "Hello"
    assert got[0] == ("/v1/models", "Bearer k")
    assert got[1] == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "max_tokens": 5,
    }


def test_what_the_model_thinks_is_told_apart(server):
    deltas = [{"role": "assistant", "content": ""}, {"reasoning_content": "Hm"}, {"reasoning": "m."}, {"content": "Hi"}]
    url, _ = server(MODELS, (200, chunks(*({"choices": [{"delta": delta}]} for delta in deltas), "[DONE]")))
    thoughts: list[str] = []
    with remote_answers(url, None, {}, thoughts.append) as answer:
        assert list(answer([{"role": "user", "content": "hi"}])) == ["Hi"]
    assert thoughts == ["Hm", "m.", "\n"]


@pytest.mark.parametrize(
    ("models", "chat", "message"),
    [
        ((401, b'{"error":{"message":"key needed"}}'), (200, b""), "key needed (401)"),
        ((200, b"<html>"), (200, b""), "is not a list of models"),
        (MODELS, (400, b'{"error":{"message":"too long"}}'), "too long (400)"),
        (MODELS, (502, b"bad gateway"), "status 502"),
        (MODELS, (200, chunks({"error": {"message": "engine died"}}, "[DONE]")), "engine died"),
    ],
)
def test_what_the_server_says_is_passed_on(server, models, chat, message):
    url, _ = server(models, chat)
    with pytest.raises(UserError) as caught:
        ask(url)
    assert message in str(caught.value)
