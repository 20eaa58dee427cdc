"""Addresses and proxies: sockets in the file system, servers on this machine, clients that speak HTTP/1.0."""

import asyncio
import io
import json
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from ekiden.api.auth import check_bind
from ekiden.api.binding import BindError, bind, url_of
from ekiden.api.server import make_server
from ekiden.cli.main import main
from ekiden.config import ConfigError, ServerConfig
from ekiden.evaluation.benches.engine import Shape
from ekiden.evaluation.benches.serve import bench_serve
from ekiden.evaluation.load.target import Target
from ekiden.evidence.spans import export_spans, otlp_exporter
from tests.api.conftest import Live, events, live
from tests.api.scripted import MODEL, QUICK, ScriptedEngine, make_app, make_tokenizer, say
from tests.unit.evidence.collector import collecting
from tests.unit.evidence.directed import Directed

__all__ = ["live"]

# --- HTTP/1.0


async def answer_to(live: Live, request: bytes) -> tuple[bytes, bytes]:
    """The head and the body of an answer, read until the server closes the connection."""
    reader, writer = await asyncio.open_connection(*live.url.removeprefix("http://").split(":"))
    writer.write(request)
    async with asyncio.timeout(60):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head, body


def post(path: str, version: str, more: str = "", **fields: Any) -> bytes:
    body = json.dumps({"model": MODEL, **fields})
    return (
        f"POST {path} HTTP/{version}\r\nhost: x\r\ncontent-type: application/json\r\n{more}"
        f"content-length: {len(body)}\r\n\r\n{body}"
    ).encode()


DOORS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    "/v1/responses": {"input": "hi"},
}


@pytest.mark.parametrize("path", DOORS)
async def test_own_23_a_stream_over_http_1_0_is_plain_bytes_ended_by_closing(live: Live, path: str) -> None:
    live.engine.script = lambda request: say("hello")
    fields = DOORS[path] | {"stream": True}
    if path == "/v1/responses":
        fields["max_output_tokens"] = 16
    head, body = await answer_to(
        live, post(path, "1.0", "connection: keep-alive\r\nexpect: 100-continue\r\n", **fields)
    )
    assert head.startswith(b"HTTP/1.1 200 OK\r\n"), body
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    lines = [line for line in body.decode().split("\n") if line]
    assert all(line.startswith(("data: ", "event: ", ":")) for line in lines)
    if path == "/v1/completions":
        assert "".join(event["choices"][0]["text"] for event in events(body.decode())) == "hello"


async def test_own_23_answers_of_known_length_keep_it(live: Live) -> None:
    head, body = await answer_to(live, post("/v1/completions", "1.0", prompt="hi"))
    assert f"content-length: {len(body)}".encode() in head
    assert json.loads(body)["object"] == "text_completion"
    head, body = await answer_to(live, b"HEAD /health HTTP/1.0\r\n\r\n")
    assert body == b""


async def test_own_23_over_http_1_1_streams_stay_in_chunks(live: Live) -> None:
    head, body = await answer_to(
        live, post("/v1/completions", "1.1", "connection: close\r\n", prompt="hi", stream=True)
    )
    assert b"transfer-encoding: chunked" in head
    assert body.endswith(b"0\r\n\r\n")


# --- proxies


class Proxy(HTTPServer):
    """Answers everything with 502 and keeps what it was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Refusing)
        self.asked: list[str] = []


class _Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Proxy)
        self.server.asked.append(self.path)
        self.send_response(502)
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_CONNECT = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy that the environment names for everything."""
    server = Proxy()
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://someone:secret@127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


async def test_own_24_a_server_on_this_machine_is_asked_directly(
    live: Live, proxy: Proxy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))  # a chat without a word
    port = live.url.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost"):
        url = f"http://{host}:{port}"
        assert await asyncio.to_thread(main, ["lineage", "diff", url, url]) == 0
        assert await asyncio.to_thread(main, ["chat", "--url", url]) == 0
        assert await asyncio.to_thread(main, ["top", "--url", url, "--once"]) == 2  # it has no key for that
    assert "answered 404" in capsys.readouterr().err
    shape = Shape(rows=1, requests=2, prompt_tokens=4, output_tokens=3)
    figures = await bench_serve(Target.parse(live.url), shape, model_id=None, timeout=60, warm_up=1)
    assert figures["failures_by_kind"] == {"http_400": 2}, "it has none of the tokens of that load"
    assert proxy.asked == []


@pytest.mark.parametrize("command", [["lineage", "show"], ["chat", "--url"], ["top", "--once", "--url"]])
def test_own_24_the_message_names_the_proxy_without_its_password(
    command: list[str], proxy: Proxy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> str:
        assert main([*command, "http://server.invalid:8000"]) == 2
        error = capsys.readouterr().err
        assert "secret" not in error
        assert error.count("\n") == 1
        return error

    place = f"127.0.0.1:{proxy.server_port}"
    assert f"answered through the proxy http://{place}" in told()  # with 502
    monkeypatch.setenv("http_proxy", f"socks9://someone:secret@{place}")
    assert f"through the proxy socks9://{place}: " in told()
    monkeypatch.setenv("http_proxy", "http://someone:secret@127.0.0.1:1")  # where nobody listens
    error = told()
    assert "through the proxy http://127.0.0.1:1: " in error
    assert "NO_PROXY=server.invalid asks it without the proxy" in error


def test_own_24_what_no_proxy_excepts_is_asked_directly(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target.parse("http://server.invalid:8000")
    with target.client() as client:
        assert client.get(f"{target.base}/models").status_code == 502
    assert proxy.asked == ["http://server.invalid:8000/v1/models"]
    monkeypatch.setenv("NO_PROXY", "other.invalid,.invalid")
    monkeypatch.setenv("no_proxy", "other.invalid,.invalid")
    with target.client() as client, pytest.raises(httpx.ConnectError):
        client.get(f"{target.base}/models")
    assert len(proxy.asked) == 1


def test_own_24_spans_go_to_a_collector_on_this_machine_directly(proxy: Proxy, tmp_path: Path) -> None:
    world = Directed()
    world.submit("a", output=3)
    world.run()
    with collecting() as collector, world.stored(tmp_path) as reader:
        assert export_spans(reader, otlp_exporter(collector.url)) == 1
        assert collector.posts == 1
    assert proxy.asked == []


# --- sockets in the file system


@pytest.fixture
async def unix(tmp_path: Path) -> AsyncIterator[str]:
    """A server on a socket's file; its address."""
    engine = ScriptedEngine(make_tokenizer())
    app = make_app(engine)
    engine.script = lambda request: say("hello")
    listener = bind(f"unix:{tmp_path}/ekiden.sock", 8000)
    server = make_server(app, QUICK)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    yield url_of(listener)
    server.ask_to_stop()
    await task
    listener.close()
    assert not list(tmp_path.glob("*.sock"))


async def test_own_25_a_server_listens_on_a_sockets_file(unix: str) -> None:
    path = unix.removeprefix("unix:")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    transport = httpx.AsyncHTTPTransport(uds=path)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.get("/health")).status_code == 200
        body = {"model": MODEL, "prompt": "hi", "stream": True, "max_tokens": 5}
        answer = await http.post("/v1/completions", json=body)
        assert "".join(event["choices"][0]["text"] for event in events(answer.text)) == "hello"
        refused = await http.post("/v1/completions", json={"model": "other"})
        assert refused.status_code == 400


async def test_own_25_our_commands_speak_to_it(unix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await asyncio.to_thread(main, ["lineage", unix]) == 0
    assert await asyncio.to_thread(main, ["lineage", "diff", unix, unix.replace("unix:", "unix://")]) == 0
    assert await asyncio.to_thread(main, ["top", "--url", unix, "--once"]) == 2
    assert f"{unix}/admin/live answered 404" in capsys.readouterr().err
    shape = Shape(rows=1, requests=2, prompt_tokens=4, output_tokens=3)
    figures = await bench_serve(Target.parse(unix), shape, model_id=None, timeout=60, warm_up=1)
    assert figures["failures_by_kind"] == {"http_400": 2}, "it has none of the tokens of that load"


def test_own_25_it_needs_no_key_and_a_wrong_path_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_bind(ServerConfig(host=f"unix:{tmp_path}/s"))
    for host in ("unix:", "unix:relative", "unix:/" + "x" * 200):
        with pytest.raises(ConfigError, match="an absolute path of at most 107 bytes"):
            ServerConfig(host=host)
    (tmp_path / "file").write_text("no socket")
    for place, told in (
        (tmp_path / "file", "there is a file of that name, which is no socket"),
        (tmp_path / "nowhere" / "s", "No such file or directory"),
    ):
        assert main(["serve", "--host", f"unix:{place}"]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert "choose another path with --host" in error
        assert error.count("\n") == 1
    assert (tmp_path / "file").read_text() == "no socket"


def test_own_25_a_file_left_behind_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    assert path.exists()
    listener = bind(f"unix:{path}", 0)
    with pytest.raises(BindError, match="another server listens there"):
        bind(f"unix:{path}", 0)
    path.unlink()
    second = bind(f"unix:{path}", 0)
    listener.close()
    assert path.exists(), "it is the second's by now"
    os.close(second.detach())  # as an event loop leaves it that has closed the file itself
    second.close()
    assert not path.exists()
