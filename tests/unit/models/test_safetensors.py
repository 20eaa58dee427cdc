"""Safetensors: every float type, shards, and damaged files that end in one line."""

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ekiden.models.architectures.hf_config import spec_from_config
from ekiden.models.architectures.weights import check_weights
from ekiden.models.errors import ModelError
from ekiden.models.safetensors import INDEX, SafetensorsCheckpoint, shards_of


def packed(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


VALUES = np.array([[1.0, -2.5], [0.0, 65280.0], [3.140625, -0.0078125]], np.float32)  # exact in bfloat16


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        ("F64", VALUES.astype("<f8").tobytes()),
        ("F32", VALUES.astype("<f4").tobytes()),
        ("F16", VALUES.astype("<f2").tobytes()),
        ("BF16", (VALUES.view(np.uint32) >> 16).astype("<u2").tobytes()),
    ],
)
def test_float_types(tmp_path, dtype, data):
    path = tmp_path / "model.safetensors"
    path.write_bytes(packed({"__metadata__": {"a": "b"}, "x": entry(dtype, [3, 2], 0, len(data))}, data))
    checkpoint = SafetensorsCheckpoint((path,))
    assert checkpoint.shapes.keys() == {"x"}
    assert checkpoint.shapes["x"] == (3, 2)
    assert checkpoint.tensor("x").dtype == np.float32
    assert np.array_equal(checkpoint.tensor("x"), VALUES)


def test_files_that_the_safetensors_package_wrote(reference_dir):
    """The reference models: one file in float32, float16 and bfloat16 each; names as transformers has them."""
    for folder in ("llama", "llama-tied", "qwen3"):
        checkpoint = SafetensorsCheckpoint(shards_of(reference_dir / folder))
        assert ("lm_head.weight" in checkpoint.shapes) == (folder != "llama-tied")
        assert np.isfinite(checkpoint.tensor("model.layers.1.mlp.down_proj.weight")).all()
        assert checkpoint.shapes["model.embed_tokens.weight"] == (264, 64)


class TestShards:
    def write(self, folder, weight_map):
        data = VALUES.tobytes()
        for name in ("one.safetensors", "two.safetensors"):
            (folder / name).write_bytes(packed({name[:3]: entry("F32", [6], 0, 24)}, data))
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))

    def test_by_index(self, tmp_path):
        self.write(tmp_path, {"one": "one.safetensors", "two": "two.safetensors"})
        checkpoint = SafetensorsCheckpoint(shards_of(tmp_path))
        assert checkpoint.shapes.keys() == {"one", "two"}

    def test_a_missing_shard_is_named(self, tmp_path):
        self.write(tmp_path, {"one": "one.safetensors", "x": "three.safetensors"})
        with pytest.raises(ModelError, match=r"three\.safetensors: named by .* but missing"):
            shards_of(tmp_path)

    def test_a_way_out_of_the_folder_is_refused(self, tmp_path):
        self.write(tmp_path, {"one": "../one.safetensors"})
        with pytest.raises(ModelError, match="outside its folder"):
            shards_of(tmp_path)

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"weight_map": 5}', "[" * 50_000, "\x00"])
    def test_damaged_index(self, tmp_path, text):
        (tmp_path / INDEX).write_text(text)
        with pytest.raises(ModelError, match="not a readable index"):
            shards_of(tmp_path)

    def test_the_same_tensor_twice(self, tmp_path):
        for name in ("a.safetensors", "b.safetensors"):
            (tmp_path / name).write_bytes(packed({"x": entry("F32", [6], 0, 24)}, VALUES.tobytes()))
        with pytest.raises(ModelError, match="'x' is in another file as well"):
            SafetensorsCheckpoint(shards_of(tmp_path))


class TestDamaged:
    def read(self, path, content: bytes) -> None:
        path.write_bytes(content)
        checkpoint = SafetensorsCheckpoint((path,))
        for name in checkpoint.shapes:
            checkpoint.tensor(name)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "cannot be read"),
            (b"\x01\x00", "only 2 bytes"),
            (struct.pack("<Q", 1 << 62) + b"{}", "does not fit"),
            (struct.pack("<Q", 100) + b"{}", "does not fit"),
            (packed(b"{]"), "not JSON"),
            (packed(b"\xff\xfe"), "not JSON"),
            (packed(b"[" * 100_000), "not JSON"),
            (packed([]), "not a JSON object"),
            (packed({"x": 5}), "not understood"),
            (packed({"x": {"dtype": "F32"}}), "not understood"),
            (packed({"x": entry("F32", [-1], 0, 4)}, b"1234"), "not understood"),
            (packed({"x": entry("F32", [1.5], 0, 4)}, b"1234"), "not understood"),  # type: ignore[list-item]
            (packed({"x": entry("F32", [True], 0, 4)}, b"1234"), "not understood"),
            (packed({"x": entry("F32", [1], 0, 1 << 60)}, b"1234"), "not understood"),
            (packed({"x": entry("F32", [1], 4, 0)}, b"1234"), "past the end"),
            (packed({"x": entry("F32", [2], 0, 8)}, b"1234"), "past the end"),
            (packed({"x": entry("F32", [2], 0, 4)}, b"1234"), "does not fill"),
            (packed({"x": entry("F32", [1 << 40, 1 << 40], 0, 4)}, b"1234"), "does not fill"),
        ],
    )
    def test_is_refused_in_one_line(self, tmp_path, content, words):
        with pytest.raises(ModelError, match=words) as caught:
            self.read(tmp_path / "model.safetensors", content)
        assert "\n" not in str(caught.value)

    def test_types_that_are_no_weights(self, tmp_path):
        content = packed({"x": entry("I8", [4], 0, 4)}, b"1234")
        with pytest.raises(ModelError, match="type 'I8'; F64, F32, F16, BF16 are supported"):
            self.read(tmp_path / "model.safetensors", content)

    def test_a_tensor_that_is_not_there(self, reference_dir):
        spec = spec_from_config("config.json", json.loads((reference_dir / "llama" / "config.json").read_text()))
        checkpoint = SafetensorsCheckpoint(shards_of(reference_dir / "llama"))
        with pytest.raises(ModelError, match=r"'model\.layers\.2\..*' is missing"):
            check_weights("model", replace(spec, num_layers=3), checkpoint)

    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(changes=st.lists(st.tuples(st.integers(0, 2400), st.integers(0, 255)), min_size=1, max_size=4))
    def test_changed_bytes_are_read_or_refused(self, tmp_path, reference_dir, changes):
        data = bytearray((reference_dir / "qwen2" / "model.safetensors").read_bytes())
        for position, value in changes:
            data[position] = value
        try:
            self.read(tmp_path / "model.safetensors", bytes(data))
        except ModelError as error:
            message = str(error)
            assert "\n" not in message
