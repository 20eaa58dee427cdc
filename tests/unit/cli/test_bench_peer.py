"""What `ekiden bench peer` shows, from figures that were not measured here, and of peers that are not installed."""

import json

import pytest

from ekiden.cli import bench_peer
from ekiden.cli.main import main
from ekiden.evaluation.benches.peer import OURS, compared
from ekiden.evaluation.benches.peers.turns import Turns


@pytest.fixture
def measured(monkeypatch):
    """No model is loaded and no server started: each arm was twice as slow as ours, and one failed."""
    turns = Turns(
        passes={OURS: [{"total_tokens_per_second": 100.0}] * 2, "genai": [{"total_tokens_per_second": 50.0}] * 2},
        failures={"vllm-bf16": "out of memory"},
    )
    found = compared(turns, {"total_tokens_per_second": True}, 64)
    asked = []

    def in_process(resolved, shape, room, chosen, show, *, rounds, quality):
        asked.append((room.rows, sorted(chosen), rounds, quality))
        show("in process", found)
        return {}

    def http(room, chosen, loads, show, *, rounds, timeout):
        for load in loads:
            show(f"{load.clients} streams, {load.requests} requests", found)

    monkeypatch.setattr(bench_peer, "_in_process", in_process)
    monkeypatch.setattr(bench_peer, "_http", http)
    return asked


def test_peers_that_are_not_installed_are_named_and_the_others_measured(measured, tmp_path, capsys, smollm2_files):
    assert main(["bench", "peer", "--peers", str(tmp_path), "--peer", "vllm-w8a8", "--peer", "llamacpp-gguf"]) == 0
    told = capsys.readouterr().out
    assert "vllm-w8a8: not installed; `make setup-peer-vllm` installs it" in told
    assert "llamacpp-gguf: not installed; `make setup-peer-llamacpp` installs it" in told
    assert measured == [(64, [], 2, True)]
    rows = [line.split() for line in told.splitlines() if line.split()[:1] == ["genai"]]
    assert rows[0] == ["genai", "50", "50", "-", "50", "2.00", "2.00", "-", "2.00"]
    assert "vllm-bf16: not measured: out of memory" in told


def test_one_way_alone_and_no_quality(measured, tmp_path, capsys, smollm2_files):
    options = ["--peers", str(tmp_path), "--peer", "vllm-w8a8", "--way", "http", "--no-quality", "--json"]
    assert main(["bench", "peer", *options]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert not measured
    assert list(figures["compared"]) == ["32 streams, 64 requests", "1 streams, 6 requests"]
    assert set(figures) == {"left_out", "arms", "compared"}
    assert (
        figures["compared"]["32 streams, 64 requests"]["arms"]["genai"]["total_tokens_per_second"]["ratio"]["mean"]
        == 2.0
    )
