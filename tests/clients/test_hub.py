"""``org/name`` through ``huggingface_hub`` itself, against a stand-in for the hub on this machine.

The package reads ``HF_ENDPOINT`` when it is imported, so each fetch runs in a process of its own.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ekiden.models.errors import ModelError
from ekiden.models.resolve import resolve

COMMIT = "c0ffee" * 6 + "c0ff"
PROGRAM = """
import json, sys
from pathlib import Path
from ekiden.models.errors import ModelError
from ekiden.models.load import describe
from ekiden.models.resolve import resolve
seen = []
try:
    files = resolve(sys.argv[1], Path(sys.argv[2]), progress=lambda what, done, total: seen.append([what, done, total]))
    print(json.dumps({"name": describe(files).files.name, "root": str(files.root), "seen": seen}))
except ModelError as error:
    print(json.dumps({"error": str(error)}))
"""


@dataclass
class Hub:
    """What the stand-in serves, and how it fails."""

    files: dict[str, bytes]
    status: int = 200
    error_code: str = ""
    cut: str = ""  # a file that ends half-way
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self) -> None:
        hub = self.hub
        path = self.path.split("?")[0]
        hub.asked.append(path)
        if hub.status != 200:
            self.answer(b"{}", hub.status, **({"X_Error_Code": hub.error_code} if hub.error_code else {}))
        elif path == "/api/models/org/name/revision/main":
            siblings = [{"rfilename": name} for name in hub.files]
            self.answer(json.dumps({"id": "org/name", "sha": COMMIT, "siblings": siblings}).encode())
        elif path == f"/api/models/org/name/tree/{COMMIT}":
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in hub.files.items()
            ]
            self.answer(json.dumps(entries).encode())
        elif (name := path.removeprefix(f"/org/name/resolve/{COMMIT}/")) in hub.files:
            data = hub.files[name]
            tag = hashlib.sha1(data).hexdigest()
            if name == hub.cut and self.command == "GET":
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: len(data) // 2])
                self.close_connection = True
            else:
                self.answer(data, ETag=f'"{tag}"', X_Repo_Commit=COMMIT)
        else:
            self.answer(b"{}", 404, X_Error_Code="EntryNotFound")

    do_HEAD = do_GET


@pytest.fixture
def hub(reference_dir):
    files = {path.name: path.read_bytes() for path in (reference_dir / "qwen2").iterdir() if path.name != "logits.npz"}
    files["pytorch_model.bin"] = b"never fetched"
    files["README.md"] = b"never fetched"
    hub = Hub(files=files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()


def fetch(hub_or_endpoint: Hub | str, cache: Path, model: str = "org/name") -> dict[str, object]:
    endpoint = hub_or_endpoint if isinstance(hub_or_endpoint, str) else hub_or_endpoint.endpoint
    environment = os.environ | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache / "home"),
        "HF_HUB_ETAG_TIMEOUT": "3",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, model, str(cache)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    assert "\n" not in str(result.get("error", ""))
    return result


def test_fetches_what_a_model_is_made_of_and_no_more(hub, tmp_path):
    result = fetch(hub, tmp_path)
    assert result["name"] == "org/name"
    root = Path(str(result["root"]))
    assert root.is_relative_to(tmp_path / "hub")
    assert {path.name for path in root.iterdir()} == set(hub.files) - {"pytorch_model.bin", "README.md"}
    assert (root / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    what, done, total = result["seen"][-1]  # type: ignore[index]
    assert what == "fetching org/name"
    assert done == total > 100_000


def test_a_complete_copy_serves_when_the_hub_is_away(hub, tmp_path):
    first = fetch(hub, tmp_path)
    second = fetch("http://127.0.0.1:9", tmp_path)
    assert (second["name"], second["root"]) == (first["name"], first["root"])


def test_half_a_fetch_is_no_model(hub, tmp_path):
    hub.cut = "model.safetensors"
    assert "org/name cannot be fetched from the hub" in str(fetch(hub, tmp_path)["error"])
    assert "no complete copy is here" in str(fetch("http://127.0.0.1:9", tmp_path)["error"])
    hub.cut = ""
    root = Path(str(fetch(hub, tmp_path)["root"]))
    assert (root / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, "RepoNotFound", "no such repository; check the name, and set HF_TOKEN"),
        (401, "RepoNotFound", "no such repository; check the name, and set HF_TOKEN"),
        (403, "GatedRepo", "it is gated; accept its terms there, then set HF_TOKEN"),
        (500, "", "check the network, the proxy and HF_ENDPOINT (Server error '500"),
    ],
)
def test_refusals(hub, tmp_path, status, code, words):
    hub.status, hub.error_code = status, code
    assert words in str(fetch(hub, tmp_path)["error"])


def test_nobody_there(tmp_path):
    error = str(fetch("http://127.0.0.1:9", tmp_path)["error"])
    assert error.startswith("org/name cannot be fetched from the hub, and no complete copy is here")


def test_a_repository_without_a_model(hub, tmp_path):
    hub.files = {"README.md": b"x"}
    assert "holds no model" in str(fetch(hub, tmp_path)["error"])


def test_without_the_extra_the_message_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"'org/name' names a model on a hub.*pip install 'ekiden\[hub\]'"):
        resolve("org/name", tmp_path)
