"""A server under attack, seen from outside: sends it raw bytes, and checks what must be true of it afterwards."""

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fuzz.extremes import Bodies
    from tests.fuzz.neighbours import Neighbours

SECONDS = 60.0


@dataclass
class Target:
    """``model`` and ``vocab_size`` are the server's; ``answers`` counts its answers by status."""

    host: str
    port: int
    model: str
    vocab_size: int
    answers: dict[int, int] = field(default_factory=dict)
    usual: str | None = None
    seconds: float = SECONDS
    """Seconds that no answer may exceed."""
    seed: int = 0
    drawn: "Bodies | None" = None
    neighbours: "Neighbours | None" = None
    """What :func:`tests.fuzz.attacks.extremes` goes on with when it is run again."""

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.seconds)
        try:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", path, data, {"content-type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        finally:
            connection.close()
        self.note(path, status, text)
        return status, text

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.seconds)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def note(self, path: str, status: int, text: bytes) -> None:
        """Count an answer; fail on a server error, and on an error in another shape than the path's."""
        self.answers[status] = self.answers.get(status, 0) + 1
        assert status < 500, text[:500]
        if status >= 400:
            body = json.loads(text)
            if path.startswith("/v1/messages"):
                assert set(body) == {"type", "error"}
                assert set(body["error"]) - {"estimate"} == {"type", "message"}
            else:
                assert set(body["error"]) - {"estimate"} == {"message", "type", "param", "code"}
            assert len(text) < 3000

    def send(self, pieces: Sequence[bytes], *, read: int = 2**20, reset: bool = False, patience: float) -> bytes:
        """Send raw bytes, read at most ``read`` bytes, and leave, with a reset or a normal close.

        Returns what was received. A connection that closes early or is silent for ``patience`` seconds is no fault.
        """
        got = bytearray()
        with socket.create_connection((self.host, self.port), timeout=self.seconds) as connection:
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            with contextlib.suppress(ConnectionError, TimeoutError):
                for piece in pieces:
                    connection.sendall(piece)
                connection.settimeout(patience)
                while len(got) < read and (chunk := connection.recv(min(65536, read - len(got)))):
                    got += chunk
        return bytes(got)

    def load(self) -> dict[str, int]:
        status, text = self.get("/load")
        assert status == 200
        loaded: dict[str, int] = json.loads(text)
        return loaded

    def check(self, seconds: float = SECONDS) -> None:
        """Check that the server is alive, is idle within ``seconds``, and still gives the same answer."""
        assert self.get("/health")[0] == 200
        end = time.monotonic() + seconds
        while (load := self.load())["server_load"] or load["kv_blocks_used"]:
            assert time.monotonic() < end, f"work is left though nobody waits for it: {load}"
            time.sleep(0.01)
        body = {"model": self.model, "prompt": "1 2 3", "max_tokens": 4, "temperature": 0}
        status, text = self.post("/v1/completions", body)
        assert status == 200
        answer = json.loads(text)["choices"][0]["text"]
        self.usual = self.usual or answer
        assert answer == self.usual
