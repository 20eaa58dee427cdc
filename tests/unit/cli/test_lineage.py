"""``ekiden lineage``: from the settings and a model to the ledger, the reports and a diff of two."""

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

from ekiden.build.model import model_card
from ekiden.build.provenance import make_lineage
from ekiden.cli.main import main
from ekiden.config import CacheConfig, Config, EngineConfig, LimitsConfig, ModelConfig, SchedulerConfig, ServerConfig
from ekiden.guardrails.limits import load_tenants
from ekiden.ledger.store import LedgerWriter
from ekiden.models.load import ModelDescription
from ekiden.models.resolve import ModelFiles
from ekiden.state.lineage import Lineage
from ekiden.state.runner import ChunkRules, RunnerInfo
from tests.api.scripted import make_tokenizer
from tests.unit.evidence.directed import Directed

INFO = RunnerInfo(
    backend="fake",
    vocab_size=300,
    max_model_len=64,
    block_size=16,
    num_blocks=8,
    num_swap_blocks=0,
    bytes_per_block=1,
    chunks=ChunkRules(border=32, least=2),
)


def description(weights: str = "w") -> ModelDescription:
    folder = Path("models")
    return ModelDescription(
        files=ModelFiles(kind="gguf", name="tiny", root=folder, weights=(folder / "tiny.gguf",), cache_dir=folder),
        spec=None,
        vocab_size=300,
        max_position_embeddings=64,
        tokenizer=make_tokenizer(),
        chat_template=None,
        generation_defaults={"top_p": 0.9},
        digests={"weights": weights, "tokenizer": "t", "config": "c"},
    )


def digest(config: Config | None = None, weights: str = "w", info: RunnerInfo = INFO) -> str:
    return make_lineage(config or Config(), description(weights), info).digest


def test_what_can_change_a_token_or_a_decision_is_in_the_digest(tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text("[tenants.a]\nweight = 2.0\n")
    base = digest()
    assert digest() == base
    others = [
        digest(weights="x"),
        digest(info=replace(INFO, details={"self_test": "failed"})),
        digest(info=replace(INFO, num_blocks=9)),
        digest(Config(scheduler=SchedulerConfig(batching="static"))),
        digest(Config(cache=CacheConfig(enable_prefix_caching=False))),
        digest(Config(engine=EngineConfig(seed=1))),
        digest(Config(limits=LimitsConfig(max_num_queued_reqs=1))),
        digest(Config(tenants=load_tenants(str(tenants)))),
    ]
    assert len({base, *others}) == len(others) + 1


def test_addresses_names_and_keys_are_not_and_no_secret_is_told() -> None:
    config = Config(
        model=ModelConfig(served_model_name="other"), server=ServerConfig(port=9999, api_key="a-secret-of-ours-1234")
    )
    made = make_lineage(config, description(), INFO, {"server.port": "/etc/ekiden/site.toml"})
    assert made.digest == digest()
    assert made.apart["server.port"] == 9999
    assert made.sources == {"server.port": "site.toml"}
    assert "a-secret" not in json.dumps(made.as_object())


def test_the_fingerprint_ends_with_it_and_says_when_the_promise_is_relaxed() -> None:
    card = model_card(Config(), description(), INFO, make_lineage(Config(), description(), INFO))
    assert card.fingerprint == f"ekiden-0.1.0-{card.lineage.digest[:8]}"
    config = Config(engine=EngineConfig(determinism="relaxed"))
    relaxed = model_card(config, description(), INFO, make_lineage(config, description(), INFO))
    assert relaxed.fingerprint == f"ekiden-0.1.0-{relaxed.lineage.digest[:8]}-relaxed"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs that differ in one setting."""
    world = Directed(max_num_seqs=1)
    for name, seats in (("20250101-a", 1), ("20250102-b", 2)):
        made = Lineage(settings={"scheduler.max_num_seqs": seats}, sources={"scheduler.max_num_seqs": "--max-num-seqs"})
        header = msgspec.structs.replace(world.header, run_id=name, lineage=made)
        LedgerWriter(tmp_path / f"{name}.sqlite", header).close()
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> tuple[int, str, str]:
    status = main([*arguments, "--ledger-dir", str(folder)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_newest_run_is_shown_with_where_values_came_from(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    status, text, _ = run(capsys, folder, "lineage")
    assert status == 0
    assert "scheduler.max_num_seqs  2  --max-num-seqs" in text
    _, named, _ = run(capsys, folder, "lineage", "20250101", "--json")
    assert json.loads(named)["settings"] == {"scheduler.max_num_seqs": 1}


def test_a_diff_says_what_changed_and_its_status_tells(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    status, text, _ = run(capsys, folder, "lineage", "diff", "20250101", "last", "--json")
    assert status == 1
    told = json.loads(text)
    assert told["same"] is False
    assert told["changes"] == [{"section": "settings", "name": "scheduler.max_num_seqs", "before": 1, "after": 2}]
    status, text, _ = run(capsys, folder, "lineage", "diff", "20250102", "last")
    assert status == 0
    assert "Made by the same" in text


def test_a_report_and_a_server_can_be_compared_with_a_run(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    whole = Lineage(settings={"scheduler.max_num_seqs": 2}).as_object()
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"requests": 3, "lineage": {"model": "tiny", "whole": whole}}))
    assert run(capsys, folder, "lineage", "diff", str(report), "last")[0] == 0

    class Told(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(whole).encode()
            self.send_response(200 if self.path == "/v1/lineage" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Told)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        assert run(capsys, folder, "lineage", "diff", url, "last")[0] == 0
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("20259", "no run '20259'"),
        ("missing.json", "missing.json"),
        ("http://127.0.0.1:1", "is the server running?"),
    ],
)
def test_what_cannot_be_found_is_one_line(
    capsys: pytest.CaptureFixture[str], folder: Path, what: str, told: str
) -> None:
    status, _, error = run(capsys, folder, "lineage", what)
    assert status == 2
    assert told in error
    assert error.count("\n") == 1


def test_a_report_without_one_says_so(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "old.json"
    report.write_text(json.dumps({"lineage": {"model": "tiny"}}))
    status, _, error = run(capsys, folder, "lineage", str(report))
    assert status == 2
    assert "holds no lineage" in error
