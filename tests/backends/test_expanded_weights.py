"""int8 weights held as float32: the same values, chosen where they pay."""

from pathlib import Path

import numpy as np
import pytest

from ekiden.backends.openvino import kernels, machine
from ekiden.backends.openvino.graph import build_model
from ekiden.backends.openvino.kernels import Kernels
from ekiden.backends.openvino.weights.int8 import quantise_per_channel
from ekiden.backends.openvino.weights.table import EXPANDED, choose_format
from ekiden.config import ConfigError
from ekiden.models.load import ModelDescription, describe, open_checkpoint
from ekiden.models.resolve import ModelFiles, files_in_folder
from tests.backends.driving import configuration, load_folder, sequence, step

AVX2, VNNI = "fpu avx avx2 fma", "fpu avx avx2 fma avx512f avx512_vnni"


@pytest.fixture
def files(reference_dir: Path, tmp_path: Path) -> ModelFiles:
    return files_in_folder(reference_dir / "llama", "llama", tmp_path)


@pytest.fixture
def description(files: ModelFiles) -> ModelDescription:
    return describe(files)


def test_the_layers_hold_the_values_of_int8_and_the_tables_stay_int8(files, description):
    checkpoint = open_checkpoint(files)
    graph = build_model(description.spec, checkpoint, EXPANDED)
    constants = [node for node in graph.get_ops() if node.get_type_name() == "Constant" and node.get_byte_size() > 64]
    tables = [node for node in constants if node.get_element_type().get_type_name() == "i8"]
    assert [list(node.shape) for node in tables] == [[description.vocab_size, description.spec.hidden_size]] * 2

    found = [node.data for node in constants if node.get_element_type().get_type_name() == "f32"]
    layers = [name for name in checkpoint.shapes if name.endswith("_proj.weight")]
    assert len(layers) == 7 * description.spec.num_layers
    for name in layers:
        values, scale = quantise_per_channel(checkpoint.tensor(name))
        expected = values.astype(np.float32) * scale.astype(np.float32)
        assert any(np.array_equal(each, expected) for each in found), name


@pytest.mark.parametrize("expand", ["always", "never"])
def test_the_format_is_told(expand, reference_dir: Path, tmp_path: Path):
    runner = load_folder(reference_dir / "llama", tmp_path, weights="int8", expand_weights=expand, kv_cache_size="8MiB")
    assert runner.info.details["weights"] == (EXPANDED.name if expand == "always" else "int8")
    assert runner.info.details["self_test"] == "passed"


def test_answers_stay_as_close_to_the_reference_as_those_of_int8(reference_dir: Path, tmp_path: Path):
    vectors = np.load(reference_dir / "qwen3" / "logits.npz")
    spread = float(vectors["logits"][-1].std())
    for expand in ("always", "never"):
        runner = load_folder(
            reference_dir / "qwen3", tmp_path, weights="int8", expand_weights=expand, kv_cache_size="8MiB"
        )
        logits = step(runner, [(sequence(vectors["input_ids"].tolist(), [0, 1]), 40)])[0]
        assert np.abs(logits - vectors["logits"][-1]).max() <= 0.25 * spread, expand


@pytest.mark.parametrize(
    ("flags", "memory", "settings", "format"),
    [
        (AVX2, 2**34, {}, EXPANDED.name),
        (VNNI, 2**34, {}, "int8-rotated"),
        (VNNI, 2**34, {"weights": "int8"}, "int8"),
        (VNNI, 2**34, {"weights": "int8-static"}, "int8-static"),
        (AVX2, 2**34, {"weights": "int8"}, EXPANDED.name),
        (AVX2, 2**34, {"weights": "int8-rotated"}, "int8-rotated"),
        ("", 2**34, {}, "int8-rotated"),  # a system that does not tell
        (AVX2, 2**20, {}, "int8"),  # an eighth of it is too little
        (AVX2, 2**34, {"expand_weights": "never"}, "int8"),
        (VNNI, 2**20, {"expand_weights": "always"}, EXPANDED.name),
        (AVX2, 2**34, {"weights": "fp16"}, "fp16"),
    ],
)
def test_auto_expands_where_it_pays_and_fits(flags, memory, settings, format, description, monkeypatch):
    monkeypatch.setattr(machine, "cpu_flags", lambda: flags)
    monkeypatch.setattr(machine, "memory_bytes", lambda: memory)
    monkeypatch.setattr(kernels, "installed", Kernels)
    assert choose_format(configuration(**settings).model, description.spec).format.name == format


def test_the_memory_is_the_smaller_of_the_machines_and_the_groups(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(machine, "_MEMORY_LIMIT", tmp_path / "memory.max")
    whole = machine.memory_bytes()
    assert whole > 2**28
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.memory_bytes() == whole
    (tmp_path / "memory.max").write_text("268435456\n")
    assert machine.memory_bytes() == 2**28


def test_products_of_bytes_are_refused_where_they_overflow(description, monkeypatch):
    monkeypatch.setattr(machine, "cpu_flags", lambda: AVX2)
    with pytest.raises(ConfigError, match=r"int8-static, but this processor lacks integer dot products.*--weig"):
        choose_format(configuration(weights="int8-static").model, description.spec)


def test_only_int8_can_be_expanded():
    with pytest.raises(ConfigError, match="expand_weights is always and weights fp16"):
        configuration(weights="fp16", expand_weights="always")
