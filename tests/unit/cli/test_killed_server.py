"""``kill -9`` of the server's process at work: clients are told, its other processes end, and its ledger is whole."""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from ekiden.evidence.decision_replay import replay
from ekiden.evidence.explain import explain
from ekiden.evidence.reader import LedgerReader
from ekiden.ledger.retention import runs_in

SLOTS, STREAMS = 4, 7
ENOUGH = 30
"""Pieces that each running stream has got when the server is killed."""


@pytest.fixture
def model(reference_dir: Path, tmp_path: Path) -> Path:
    """A tiny model's folder for the fake backend, with room for answers without end."""
    folder = shutil.copytree(reference_dir / "llama", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 30_000}), encoding="utf-8")
    return folder


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def serving(model: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server that answers. What is left of it is killed."""
    command = [sys.executable, "-m", "ekiden", "serve", str(model), "--backend", "fake", "--port", str(port)]
    command += ["--ledger-dir", str(model.parent / "ledger"), "--model-cache", str(model.parent / "cache")]
    command += ["--max-num-seqs", str(SLOTS), "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            while True:
                assert server.poll() is None, "the server has ended"
                try:
                    assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=60).status_code == 200
                    break
                except httpx.ConnectError:
                    time.sleep(0.05)
            yield server
        finally:
            server.kill()


def processes_of(pid: int) -> list[int]:
    """The processes that it has started, and that they have."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *processes_of(child)]
    return found


class Client(threading.Thread):
    """Reads one stream to its end, however it ends."""

    def __init__(self, url: str, model: str, number: int, arrived: "threading.Semaphore") -> None:
        super().__init__(daemon=True)
        self._url, self._arrived = url, arrived
        self.body = {
            "model": model, "prompt": [5, 6, 7, 8 + number], "max_tokens": 25_000, "ignore_eos": True, "stream": True,
            "temperature": 0, "return_token_ids": True,
        }  # fmt: skip
        self.tokens: list[int] = []
        self.end = ""
        self.request_id: str | None = None

    def run(self) -> None:
        try:
            with httpx.stream("POST", f"{self._url}/v1/completions", json=self.body, timeout=60) as response:
                self.request_id = response.headers["x-ekiden-request-id"]
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        with suppress(json.JSONDecodeError):  # the kill may cut the last line
                            self._take(json.loads(line.removeprefix("data: ")))
                self.end = self.end or "finished"
        except httpx.TransportError as error:
            self.end = type(error).__name__

    def _take(self, piece: dict) -> None:  # type: ignore[type-arg]  # JSON
        if "error" in piece:
            self.end = piece["error"]["code"]
            return
        self.tokens += [token for choice in piece["choices"] for token in choice.get("token_ids") or ()]
        if len(self.tokens) >= ENOUGH:
            self._arrived.release()


@contextmanager
def all_ended(pids: list[int]) -> Iterator[None]:
    """Checks that these processes, which live now, have ended within a minute after the block."""
    handles = [os.pidfd_open(pid) for pid in pids]
    try:
        yield
        for pid, handle in zip(pids, handles, strict=True):
            assert select.select([handle], [], [], 60)[0], f"process {pid} outlives its server"
    finally:
        for handle in handles:
            os.close(handle)


@pytest.mark.parametrize("engine_first", [False, True])
def test_a_kill_of_the_server_loses_no_decision_and_leaves_nobody_waiting(model: Path, engine_first: bool) -> None:
    """``engine_first``: its engine is killed a moment before, so that it dies while it starts another one."""
    port, arrived = free_port(), threading.Semaphore(0)
    url = f"http://127.0.0.1:{port}"
    with serving(model, port) as server:
        served = httpx.get(f"{url}/v1/models", timeout=60).json()["data"][0]["id"]
        clients = [Client(url, served, number, arrived) for number in range(STREAMS)]
        for client in clients:
            client.start()
        while sum(len(client.tokens) >= ENOUGH for client in clients) < SLOTS:
            assert arrived.acquire(timeout=60)
        while num_in_flight(url) < STREAMS:
            assert server.poll() is None
            assert all(client.is_alive() for client in clients), "a stream ended before all had come"
        others = processes_of(server.pid)
        assert len(others) >= 2, "an engine and a helper for chat templates"
        with all_ended(others):
            if engine_first:
                os.kill(engine_of(others), signal.SIGKILL)
            server.kill()
            server.wait()
            for client in clients:
                client.join(60)
    ends = {client.end for client in clients}
    assert ends <= {"RemoteProtocolError", "ReadError"}, "each is told, and to none does the answer look whole"
    (run,) = runs_in(model.parent / "ledger")
    with LedgerReader(run) as reader:
        result = replay(reader.header, reader.everything())
        assert result.difference is None
        rows = reader.all_requests()
        assert engine_first or reader.live_requests() == []
        if not engine_first:  # the engine's last milliseconds die with it, and those who came in them
            assert len(rows) == STREAMS
            assert result.tokens >= sum(len(client.tokens) for client in clients)
        for client in clients:
            for row in reader.requests_named(client.request_id or ""):
                told = explain(reader, row)
                if not engine_first:
                    assert "Aborted (the server stopped before the answer was complete)" in told.headline
                assert told.status == "finished"
    with serving(model, port):  # the same port, the same ledger
        served_client = max(clients, key=lambda client: len(client.tokens))  # whoever came first has a slot
        body = served_client.body | {"max_tokens": 8, "stream": False}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
        assert answer["choices"][0]["token_ids"] == served_client.tokens[:8]
        assert httpx.get(f"{url}/health", timeout=60).status_code == 200
    assert len(runs_in(model.parent / "ledger")) == 2


def num_in_flight(url: str) -> int:
    lines = [line.rsplit(" ", 1) for line in httpx.get(f"{url}/metrics", timeout=60).text.splitlines()]
    wanted = ("ekiden:num_requests_running{", "ekiden:num_requests_waiting{")
    return sum(int(float(value)) for name, value in lines if name.startswith(wanted))


def engine_of(pids: list[int]) -> int:
    """The largest of some processes."""
    return max(pids, key=lambda pid: int(Path(f"/proc/{pid}/statm").read_text().split()[1]))
