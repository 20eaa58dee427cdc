"""Peers as processes: what they answer, what they fail with, and that they end."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ekiden.evaluation.benches.peers import processes
from ekiden.evaluation.benches.peers.processes import PeerFailed, peer_program, peer_server

VARIABLES = dict(os.environ)
PROGRAM = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "model" in asked:
        answer = {"about": {"kind": sys.argv[1], "pid": os.getpid()}}
    elif "prompts" in asked:
        answer = {"tokens": [[7] * asked["tokens"] for _ in asked["prompts"]]}
        if asked["tokens"] == 13:
            answer["tokens"].pop()
    elif asked["passages"] == [[0]]:
        print("Error: the memory is full", file=sys.stderr)
        print("and more", file=sys.stderr)
        sys.exit(3)
    else:
        answer = {"error": "ValueError: no"} if asked["passages"] == [[1]] else {"losses": [1.5]}
    print(json.dumps(answer), flush=True)
"""
SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *_):
        pass
host, port = (sys.argv[sys.argv.index(name) + 1] for name in ("--host", "--port"))
HTTPServer((host, int(port)), Answer).serve_forever()
"""


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The interpreter, which runs the program of this test in place of the peers'."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    monkeypatch.setattr(processes, "program", SimpleNamespace(__file__=str(path)))
    return Path(sys.executable)


def gone(pid: object) -> bool:
    assert isinstance(pid, int)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_program_is_asked_line_by_line_and_ends_with_its_context(python):
    with peer_program(python, "vllm", {"model": "m", "rows": 2}, VARIABLES) as peer:
        assert (peer.lineage["kind"], peer.lineage["rows"]) == ("vllm", 2)
        assert peer.generate([[1], [2]], 3) == [[7, 7, 7], [7, 7, 7]]
        assert peer.losses([[5, 6]]) == [1.5]
        with pytest.raises(PeerFailed, match="ValueError: no"):
            peer.losses([[1]])
        with pytest.raises(PeerFailed, match="did not give 13 tokens to each of 2 prompts"):
            peer.generate([[1], [2]], 13)
        pid = peer.lineage["pid"]
        assert not gone(pid)
    assert gone(pid)


def test_a_program_that_dies_is_told_with_its_last_error(python):
    full = pytest.raises(PeerFailed, match="status 3: Error: the memory is full")
    with peer_program(python, "vllm", {"model": "m"}, VARIABLES) as peer, full:
        peer.losses([[0]])


def test_a_program_that_does_not_answer_in_time(python, monkeypatch):
    monkeypatch.setattr(processes, "START_SECONDS", 0.0)
    with pytest.raises(PeerFailed, match="no answer within 0 s"), peer_program(python, "x", {"model": "m"}, VARIABLES):
        pass


def test_a_server_is_there_when_its_health_is():
    with peer_server([sys.executable, "-c", SERVER], VARIABLES) as address:
        assert address.startswith("http://127.0.0.1:")


def test_a_server_that_ends_at_once_says_why():
    command = [sys.executable, "-c", "raise SystemExit('error: no such model')"]
    with pytest.raises(PeerFailed, match="ended with status 1: error: no such model"), peer_server(command, VARIABLES):
        pass
