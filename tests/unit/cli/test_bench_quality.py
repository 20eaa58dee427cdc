"""The table of `ekiden bench quality`, from figures that were not measured here."""

import json

import pytest

from ekiden.cli.main import main
from ekiden.config import Config
from ekiden.evaluation.benches import quality
from ekiden.evaluation.benches.quality import Failed, Material, Measured

MATERIAL = Material(passages=[[1, 2, 3]], prompts=[[4], [5]])
PLAIN = Measured(losses=[2.0], answers=[[1, 2], [3, 4]], stored_bytes=4_000_000, resident_bytes=9_000_000)
COARSE = Measured(losses=[3.0], answers=[[1, 0], [3, 4]], same_choices=3, stored_bytes=1_000_000)


@pytest.fixture
def run(monkeypatch, capsys):
    def measured(config: Config, material: Material, reference: Measured | None = None) -> Measured | Failed:
        if reference is None:
            return PLAIN
        return COARSE if config.model.weights == "int8" else Failed(reason="no room")

    monkeypatch.setattr(quality, "material_for", lambda *_, **__: MATERIAL)
    monkeypatch.setattr(quality, "measure_apart", measured)

    def invoke(*arguments: str) -> str:
        assert main(["bench", "quality", "--weights", "int8,fp16", *arguments]) == 0
        told: str = capsys.readouterr().out
        return told

    return invoke


def test_a_row_for_each_format_and_the_reason_of_one_that_failed(run, smollm2_files):
    told = run()
    lines = [line.split() for line in told.splitlines() if "MB" in line]
    assert lines == [
        ["reference", "4", "MB", "9", "MB", "2.72", "2.72", "1.0000", "2.0"],
        ["int8", "1", "MB", "unknown", "4.48", "4.48", "1.6487", "75.0%", "1.5"],
    ]
    assert "fp16: not measured: no room" in told


def test_the_object_has_what_the_table_shows(run, smollm2_files):
    figures = json.loads(run("--json"))
    assert figures["formats"]["fp16"] == {"failure": "no room"}
    assert figures["formats"]["int8"]["left_after"] == [1, 2]
    assert (figures["passages"], figures["passage_tokens"], figures["prompts"]) == (1, 3, 2)
