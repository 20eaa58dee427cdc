"""``ekiden serve``, the whole of it over the fake model: its end by one signal, by two, and by SIGKILL; and what the
guard keeps over that. The engine is stopped (SIGSTOP) where a request must be in flight."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ekiden.api.keys import new_key
from ekiden.evidence.reader import LedgerReader
from ekiden.ledger.retention import is_being_written, runs_in

RULES = """
[[rules]]
name = "stall"
signal = "step_stall"
threshold = 1000.0
clear_threshold = 1.0
for_seconds = 1.0
actions = ["page", "require_acknowledgement"]
step_seconds = 5.0
cooldown_seconds = 5.0
owner = "on-call"
"""


class Served:
    """A server in a process of its own, its engine's process, and a person's key."""

    def __init__(self, process: "subprocess.Popen[str]", url: str, key: str) -> None:
        self.process, self.url = process, url
        self.http = httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60)
        self.engine = self._engine()

    def _engine(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (engine,) = [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return engine

    def stop_engine(self) -> None:
        os.kill(self.engine, signal.SIGSTOP)
        state = Path(f"/proc/{self.engine}/stat")
        until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")

    def wait_for_request(self) -> None:
        """Until the request is in flight, as the answer to an operator's wish tells."""
        until(lambda: self.http.post("/admin/drain", json={"draining": False}).json()["in_flight"] == 1)

    def ask(self, answers: list[httpx.Response]) -> threading.Thread:
        body = {"model": "llama", "prompt": [5, 6, 7], "max_tokens": 5, "ignore_eos": True}

        def call() -> None:
            with contextlib.suppress(httpx.HTTPError):
                answers.append(self.http.post("/v1/completions", json=body))

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        return thread


def until(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@contextlib.contextmanager
def served(folder: Path, model: Path, port: int, *flags: str) -> Iterator[Served]:
    key, digest = new_key()
    (folder / "keys.toml").write_text(f'[[keys]]\nname = "anna"\nhash = "{digest}"\nscopes = ["admin", "inference"]\n')
    (folder / "rules.toml").write_text(RULES)
    command = [
        sys.executable, "-m", "ekiden", "serve", str(model), "--backend", "fake", "--port", str(port),
        "--served-model-name", "llama", "--model-cache", str(folder / "cache"), "--ledger-dir", str(folder / "ledger"),
        "--api-keys-file", str(folder / "keys.toml"), "--guard", "act", "--guard-rules", str(folder / "rules.toml"),
        *flags,
    ]  # fmt: skip
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
    server = None
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"ready on (\S+)", line)
        assert found, (line, (folder / "log").read_text())
        server = Served(process, found[1], key)
        yield server
    finally:
        if server is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.engine, signal.SIGCONT)
            server.http.close()
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def model(reference_dir: Path) -> Path:
    return reference_dir / "llama"


def test_a_signal_lets_answers_finish_and_a_kill_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    port = free_port()
    with served(tmp_path, model, port) as server:
        told = server.http.post("/admin/guard", json={"action": "pause", "reason": "a test of kills"})
        assert told.status_code == 200
        server.stop_engine()
        answers: list[httpx.Response] = []
        asked = server.ask(answers)
        server.wait_for_request()
        server.process.kill()
        server.process.wait()
        asked.join(60)
        assert not answers, "the connection has ended"
        os.kill(server.engine, signal.SIGCONT)
        until(lambda: not alive(server.engine))
    (run,) = runs_in(tmp_path / "ledger")
    assert not is_being_written(run)
    with LedgerReader(run) as reader:
        assert ("anna", "paused: a test of kills") in [(row.who, row.why) for row in reader.all_controls()]
    with served(tmp_path, model, port) as server:  # on the same port, at once
        assert server.http.get("/admin/guard").json()["paused"]["who"] == "anna", "what a person said still holds"
        server.stop_engine()
        answers = []
        asked = server.ask(answers)
        server.wait_for_request()
        server.process.send_signal(signal.SIGTERM)
        until(lambda: not connects(port))
        assert asked.is_alive()
        os.kill(server.engine, signal.SIGCONT)
        asked.join(60)
        assert answers[0].json()["usage"]["completion_tokens"] == 5
        assert server.process.wait(60) == 0
        assert not alive(server.engine)
    assert len(runs_in(tmp_path / "ledger")) == 2
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert "could not look" not in log


def test_a_second_signal_ends_a_server_whose_engine_is_wedged(model: Path, tmp_path: Path) -> None:
    port = free_port()
    with served(tmp_path, model, port, "--shutdown-timeout", "1000") as server:
        server.stop_engine()
        answers: list[httpx.Response] = []
        asked = server.ask(answers)
        server.wait_for_request()
        server.process.send_signal(signal.SIGTERM)
        until(lambda: not connects(port))
        server.process.send_signal(signal.SIGTERM)
        asked.join(60)
        assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (503, "draining")
        assert server.process.wait(60) == 0
        assert not alive(server.engine)


def connects(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60):
        return True
    return False


def test_a_guard_without_a_ledger_is_refused_in_one_line(model: Path, tmp_path: Path) -> None:
    flags = ["--guard", "act", "--no-ledger", "--backend", "fake"]
    command = [sys.executable, "-m", "ekiden", "serve", str(model), *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert "leave out --no-ledger" in ended.stderr
