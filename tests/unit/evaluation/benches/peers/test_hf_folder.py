"""The folders that vLLM reads, read back by our own readers."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from ekiden.errors import UserError
from ekiden.evaluation.benches.peers.hf_folder import _config, bfloat16_bits, hf_folder, symmetric_int8
from ekiden.models.architectures.hf_config import spec_from_config
from ekiden.models.load import describe, open_checkpoint
from ekiden.models.resolve import files_in_folder
from ekiden.models.safetensors import SafetensorsCheckpoint

FAMILIES = ("llama", "llama-bias", "llama-tied", "mistral-window", "qwen2", "qwen3")


def described(reference_dir, tmp_path, name):
    return describe(files_in_folder(reference_dir / name, name, tmp_path))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_configuration_that_is_written_describes_the_same_model(reference_dir, tmp_path, family):
    description = described(reference_dir, tmp_path, family)
    written = spec_from_config("config.json", json.loads(json.dumps(_config(description.spec, description))))
    rope, own = written.rope.inverse_frequencies, description.spec.rope.inverse_frequencies
    assert rope == pytest.approx(own, rel=1e-5)
    assert replace(written, rope=description.spec.rope) == description.spec


def test_a_scaled_rotary_embedding_is_not_written(reference_dir, tmp_path):
    description = described(reference_dir, tmp_path, "llama-rope-yarn")
    with pytest.raises(UserError, match="rotary embedding is scaled"):
        _config(description.spec, description)


def test_a_folder_in_its_own_format_is_used_as_it_is(reference_dir, tmp_path):
    description = described(reference_dir, tmp_path, "llama")
    assert hf_folder(description, int8=False) == description.files.root


def test_the_int8_folder_holds_every_matrix_with_a_scale_for_each_output(reference_dir, tmp_path):
    description = described(reference_dir, tmp_path, "qwen3")
    folder = hf_folder(description, int8=True)
    assert hf_folder(description, int8=True) == folder
    assert {path.name for path in folder.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization_config"]["config_groups"]["group_0"]["weights"]["strategy"] == "channel"
    header = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(header[:8], "little")
    entries = json.loads(header[8 : 8 + size])
    name = "model.layers.0.mlp.down_proj.weight"
    begin, end = entries[name]["data_offsets"]
    data = header[8 + size :]
    stored = np.frombuffer(data[begin:end], np.int8).reshape(entries[name]["shape"])
    begin, end = entries[f"{name}_scale"]["data_offsets"]
    scale = np.frombuffer(data[begin:end], np.float32)[:, None]
    weight = open_checkpoint(description.files).tensor(name)
    assert np.abs(stored * scale - weight).max() <= scale.max() / 2 * (1 + 1e-6)
    assert entries["model.embed_tokens.weight"]["dtype"] == "BF16"
    norm = SafetensorsCheckpoint((folder / "model.safetensors",)).tensor("model.norm.weight")
    assert norm == pytest.approx(open_checkpoint(description.files).tensor("model.norm.weight"), rel=2**-8)


def test_rounding_is_to_the_nearest():
    values = np.array([[1.0, -2.54, 0.0, 0.01]], np.float32)
    stored, scale = symmetric_int8(values)
    assert stored.tolist() == [[50, -127, 0, 0]]
    assert scale == pytest.approx(np.array([[0.02]]))
    bits = bfloat16_bits(np.array([1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, -0.0, math.pi], np.float32))
    assert bits.tolist() == [0x3F80, 0x3F80, 0x3F82, 0x8000, 0x4049]
    assert symmetric_int8(np.zeros((1, 2), np.float32))[0].tolist() == [[0, 0]]
