"""Peers as processes, ended with their context: a program that is asked line by line, or a server on a free port."""

import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx

from ekiden.errors import UserError
from ekiden.evaluation.benches.peers import program
from ekiden.measure.figures import Figures

START_SECONDS = 600.0
"""vLLM compiles its kernels when it starts."""
ASK_SECONDS = 600.0
STOP_SECONDS = 10.0


class PeerFailed(UserError):
    """A peer did not start, did not answer in time, or answered with an error."""


class PeerProgram:
    """A peer's program that has loaded its model (:mod:`ekiden.evaluation.benches.peers.program`)."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, settings: dict[str, Any]) -> None:
        self._process, self._log = process, log
        about = self._ask(settings, START_SECONDS)["about"]
        assert isinstance(about, dict)
        self.lineage: Figures = {**settings, **about}

    def generate(self, prompts: list[list[int]], output_tokens: int) -> list[list[int]]:
        """Exactly ``output_tokens`` greedy tokens for each prompt. Raises :class:`PeerFailed`."""
        tokens: list[list[int]] = self._ask({"prompts": prompts, "tokens": output_tokens}, ASK_SECONDS)["tokens"]
        if [len(answer) for answer in tokens] != [output_tokens] * len(prompts):
            raise PeerFailed(f"it did not give {output_tokens} tokens to each of {len(prompts)} prompts")
        return tokens

    def losses(self, passages: list[list[int]]) -> list[float]:
        """The summed losses of each passage's tokens but the first, in nats. Raises :class:`PeerFailed`."""
        found: list[float] = self._ask({"passages": passages}, ASK_SECONDS)["losses"]
        return found

    def _ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        into, out = self._process.stdin, self._process.stdout
        assert into is not None
        assert out is not None
        try:
            into.write(json.dumps(question).encode() + b"\n")
            into.flush()
        except BrokenPipeError as error:
            raise PeerFailed(_last_words(self._log, self._process.poll())) from error
        ready, _, _ = select.select([out], [], [], seconds)
        if not ready:
            raise PeerFailed(f"it gave no answer within {seconds:.0f} s")
        if not (line := out.readline()):
            raise PeerFailed(_last_words(self._log, self._process.wait()))
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerFailed(str(answer["error"]))
        return answer


@contextmanager
def peer_program(python: Path, peer: str, settings: dict[str, Any], variables: dict[str, str]) -> Iterator[PeerProgram]:
    """Run ``peer``'s program with its own interpreter. Raises :class:`PeerFailed` when it cannot load."""
    command = [str(python), str(Path(program.__file__)), peer]
    with _logged() as log, _process(command, variables, log, piped=True) as process:
        yield PeerProgram(process, Path(log.name), settings)


@contextmanager
def peer_server(command: Sequence[str], variables: dict[str, str]) -> Iterator[str]:
    """Run a server with ``--port`` and a free one added; yields its address once ``/health`` answers.

    Raises :class:`PeerFailed` when it ends before that, or takes longer than :data:`START_SECONDS`.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with (
        _logged() as log,
        _process([*command, "--host", "127.0.0.1", "--port", str(port)], variables, log, piped=False) as process,
        httpx.Client(trust_env=False) as client,
    ):
        end = time.monotonic() + START_SECONDS
        while not _answers(client, address):
            if (status := process.poll()) is not None:
                raise PeerFailed(_last_words(Path(log.name), status))
            if time.monotonic() > end:
                raise PeerFailed(f"its server was not ready within {START_SECONDS:.0f} s")
            time.sleep(0.25)
        yield address


def _answers(client: httpx.Client, address: str) -> bool:
    try:
        return client.get(f"{address}/health").is_success
    except httpx.HTTPError:
        return False


def _logged() -> "tempfile._TemporaryFileWrapper[bytes]":
    return tempfile.NamedTemporaryFile(prefix="ekiden-peer-", suffix=".log")


@contextmanager
def _process(
    command: Sequence[str], variables: dict[str, str], log: "IO[bytes] | tempfile._TemporaryFileWrapper[bytes]", *,
    piped: bool,
) -> Iterator["subprocess.Popen[bytes]"]:  # fmt: skip
    """A process in a session of its own, which is ended with all that it has started."""
    into, out = (subprocess.PIPE, subprocess.PIPE) if piped else (subprocess.DEVNULL, log.fileno())
    process = subprocess.Popen(  # noqa: S603 - a program of the peer's environment
        command, env=variables, stdin=into, stdout=out, stderr=log.fileno(), start_new_session=True
    )
    try:
        yield process
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait()


def _last_words(log: Path, status: int | None) -> str:
    """The last line of the log that names an error, or the last line of all."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower()]
    return f"it ended with status {status}: {(named or lines or ['it said nothing'])[-1]:.300}"
