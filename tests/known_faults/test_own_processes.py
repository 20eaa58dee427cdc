"""The server's processes between their start and their end: signals at any moment, streams that take nothing."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
import pytest

from ekiden.cli import serve
from ekiden.cli.main import main
from ekiden.config import Config
from ekiden.engine.child import engine_main
from ekiden.engine.interface import Health
from ekiden.engine.parts import BuiltEngine
from ekiden.engine.process import EngineClient
from ekiden.engine.spawn import Words, spawn
from ekiden.errors import UserError
from ekiden.outlets import MAX_WAITING, Outlet
from tests.unit.engine.fake_parts import make_config, make_fake_engine

ROOT = Path(__file__).parents[2]


def make_endless_engine(config: Config) -> BuiltEngine:
    """A load that does not come to its end."""
    while True:
        time.sleep(60)


# --- signals


async def test_own_17_signals_to_the_whole_group_end_no_engine_that_starts_or_runs() -> None:
    """Its parent gets them too, lets answers finish, and ends the engine."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    spawned = spawn(engine_main)
    pid = spawned.process.pid
    assert pid is not None
    for number in numbers:
        os.kill(pid, number)  # before it has run a line of ours
    client = EngineClient(make_fake_engine, make_config(), spawned=spawned)
    await client.start()
    try:
        for number in numbers:
            os.kill(pid, number)
        await client.pause("nobody", "a question")  # which the engine answers after the signals
        assert (client.health, client.pid) == (Health.OK, pid)
    finally:
        await client.stop()


async def test_own_17_a_start_that_is_given_up_ends_the_engine_at_once_and_quietly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ekiden.engine.process.END_SECONDS", 3600.0)  # after which one that does not end is killed
    client = EngineClient(make_endless_engine, make_config())
    starting = asyncio.ensure_future(client.start())
    while client.pid is None:
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    async with asyncio.timeout(60):
        await client.stop()
    assert client.pid is None


ORPHAN = """
import os, sys
from ekiden.engine.child import engine_main
from ekiden.engine.spawn import spawn
from tests.known_faults.test_own_processes import make_endless_engine
from tests.unit.engine.fake_parts import make_config
if __name__ == "__main__":
    spawned = spawn(engine_main)
    spawned.connection.send((make_endless_engine, make_config()))
    os._exit(0)
"""


def test_own_17_an_engine_that_loads_ends_with_its_parent(tmp_path: Path) -> None:
    program = tmp_path / "orphan.py"
    program.write_text(ORPHAN)
    ended = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=60, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    # Both ends of its output are closed, which they are once the orphan is gone.
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_own_17_a_start_that_is_given_up_does_not_wait_for_what_is_read_of_the_model(
    reference_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large model is hashed for minutes."""
    go_on, ended = threading.Event(), threading.Event()

    def describe(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        go_on.wait(60)
        ended.set()

    monkeypatch.setattr("ekiden.build.model.describe_model", describe)
    command = ["serve", str(reference_dir / "llama"), "--backend", "fake", "--port", "0", "--no-ledger"]
    assert main([*command, "--model-cache", str(tmp_path)]) == 0
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(60)


def test_own_18_a_hang_up_before_there_is_anything_to_read_again_is_ignored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hung_up: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: hung_up.append(number))

    def early_signal(_: Config) -> None:
        signal.raise_signal(signal.SIGHUP)
        raise UserError("the start went on")

    monkeypatch.setattr(serve, "spawn_early", early_signal)
    try:
        assert main(["serve"]) == 2
    finally:
        signal.signal(signal.SIGHUP, before)
    assert "the start went on" in capsys.readouterr().err
    assert hung_up == []


# --- streams


@contextmanager
def serving(folder: Path, reference_dir: Path, **streams: int) -> Iterator[str]:
    """A server with these streams, or closed ones; its base URL once it answers. It must end with status 0.

    No socket may have the number of a closed stream: what is written to standard error would go into it.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ekiden", "serve", str(reference_dir / "llama"), "--backend", "fake"]
    command += ["--port", str(port), "--model-cache", str(folder), "--no-ledger"]
    if not streams:
        command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    server = subprocess.Popen(command, cwd=ROOT, **streams)  # type: ignore[call-overload]  # two of its many options
    try:
        url = f"http://127.0.0.1:{port}"
        while True:
            assert server.poll() is None, "the server has ended"
            try:
                assert httpx.get(f"{url}/health", timeout=60).status_code == 200
                break
            except httpx.ConnectError:
                time.sleep(0.1)
        if not streams:
            assert {os.readlink(f"/proc/{server.pid}/fd/{number}") for number in range(3)} == {os.devnull}
        server.send_signal(signal.SIGHUP)  # which is logged
        yield url
    finally:
        server.terminate()
        status = server.wait(60)
    assert status == 0


def is_served(url: str) -> None:
    model = httpx.get(f"{url}/v1/models", timeout=60).json()["data"][0]["id"]
    body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True, "stream": True}
    assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).text.endswith("data: [DONE]\n\n")


def test_own_15_a_server_outlives_closed_streams(tmp_path: Path, reference_dir: Path) -> None:
    with serving(tmp_path, reference_dir) as url:
        is_served(url)


def test_own_15_a_server_outlives_a_full_disk_and_a_reader_that_left(tmp_path: Path, reference_dir: Path) -> None:
    reader, pipe = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with serving(tmp_path, reference_dir, stdout=full, stderr=pipe) as url:
            is_served(url)
    finally:
        os.close(pipe)
        os.close(full)


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """A pipe that takes no more, and whose reader is there but reads nothing."""
    reader, pipe = os.pipe()
    os.set_blocking(pipe, False)
    for piece in (b"x" * 4096, b"x"):
        with suppress(BlockingIOError):
            while True:
                os.write(pipe, piece)
    os.set_blocking(pipe, True)
    try:
        yield reader, pipe
    finally:
        os.close(pipe)
        os.close(reader)


def test_own_15_a_server_outlives_a_reader_that_reads_nothing(tmp_path: Path, reference_dir: Path) -> None:
    with full_pipe() as (_, pipe), serving(tmp_path, reference_dir, stdout=pipe, stderr=pipe) as url:
        is_served(url)


def write_much(connection: Connection, _: Words) -> None:
    print("x" * 200_000, file=sys.stderr)
    connection.send("went on")
    connection.recv()


def test_own_15_an_engine_outlives_a_reader_that_reads_nothing() -> None:
    kept = os.dup(2)
    try:
        with full_pipe() as (_, pipe):
            os.dup2(pipe, 2)
            spawned = spawn(write_much)
            os.dup2(kept, 2)
            assert spawned.connection.poll(60), "the engine waits for a reader of its messages"
            assert spawned.connection.recv() == "went on"
            spawned.connection.close()
            spawned.process.join(60)
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def test_own_15_what_nobody_reads_is_dropped_and_counted_where_it_is_missing() -> None:
    reader, pipe = os.pipe()
    outlet, line = Outlet(pipe), 1000
    for number in range(5_000):
        assert outlet.write(b"%0*d\n" % (line - 1, number)) == line
    assert not outlet.wait(0)
    lines: list[bytes] = []
    with open(reader, "rb") as file:
        for read in file:
            lines.append(read)
            if b"dropped" in read:
                break
        assert outlet.wait(60)
        outlet.write(b"again\n")
        assert file.readline() == b"again\n"
    whole = [int(each) for each in lines[:-1]]
    assert whole == list(range(len(whole)))
    assert lines[-1].startswith(b"(%d writes were dropped here" % (5_000 - len(whole)))
    assert MAX_WAITING - line < len(whole) * line < MAX_WAITING + 2**17
    outlet.write(b"the reader has left")
    assert outlet.wait(60)
    os.close(pipe)
