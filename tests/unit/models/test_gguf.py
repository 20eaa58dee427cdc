"""Reading GGUF: the same weights and numbers as the Hugging Face folder, and no file that ends in a traceback."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import gguf.constants
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize, quantize
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ekiden.models.architectures.hf_config import spec_from_config
from ekiden.models.architectures.rope import rope_spec
from ekiden.models.errors import ModelError
from ekiden.models.gguf import GGUFCheckpoint
from ekiden.models.gguf_file import TENSOR_TYPES, GGUFFile
from ekiden.models.load import describe, open_checkpoint
from ekiden.models.resolve import ModelFiles, resolve
from ekiden.models.safetensors import SafetensorsCheckpoint, shards_of
from tests.unit.models.gguf_files import HEADS, HIDDEN, KV_HEADS, VOCABULARY, metadata, tensors, write_gguf

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def interleave(values: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's conversion of q and k: rotary halves to adjacent pairs."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


@pytest.mark.parametrize("family", ["llama", "llama-bias", "llama-tied", "mistral", "qwen2", "qwen3"])
def test_the_same_weights_and_numbers_as_the_folder_it_was_converted_from(tmp_path, reference_dir, family):
    folder = reference_dir / family
    config = json.loads((folder / "config.json").read_text())
    spec = spec_from_config("config.json", config)
    original = SafetensorsCheckpoint(shards_of(folder))
    architecture = "qwen" + config["model_type"][-1] if "qwen" in family else "llama"
    weights = {}
    for name in original.shapes:
        values = original.tensor(name)
        if architecture == "llama" and ".q_proj." in name:
            values = interleave(values, spec.num_heads)
        if architecture == "llama" and ".k_proj." in name:
            values = interleave(values, spec.num_kv_heads)
        weights[gguf_name(name)] = values
    keys = {
        "general.architecture": architecture,
        **{key: value for key, value in metadata().items() if key.startswith("tokenizer.")},
        f"{architecture}.context_length": 256,
        f"{architecture}.embedding_length": 64,
        f"{architecture}.block_count": 2,
        f"{architecture}.feed_forward_length": 96,
        f"{architecture}.attention.head_count": 4,
        f"{architecture}.attention.head_count_kv": 2,
        f"{architecture}.attention.key_length": spec.head_dim,
        f"{architecture}.attention.value_length": spec.head_dim,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-6,
    }
    path = write_gguf(tmp_path / "model.gguf", keys, weights)

    converted = GGUFCheckpoint(path)

    assert converted.shapes.keys() == original.shapes.keys()
    for name in original.shapes:
        assert np.array_equal(converted.tensor(name), original.tensor(name)), name
    for field in (*spec.__slots__,):
        if field == "rms_norm_eps":
            assert converted.spec.rms_norm_eps == pytest.approx(spec.rms_norm_eps)
        elif field != "family":
            assert getattr(converted.spec, field) == getattr(spec, field), field


def test_type_table_agrees_with_the_gguf_package():
    for type_id, (name, elements, size) in TENSOR_TYPES.items():
        kind = GGMLQuantizationType(type_id)
        assert (kind.name, gguf.constants.GGML_QUANT_SIZES[kind]) == (name, (elements, size))


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_tensors_are_dequantised(tmp_path, name):
    kind = GGMLQuantizationType[name]
    weights = tensors()
    path = write_gguf(tmp_path / "model.gguf", weights=weights, types={"blk.0.ffn_up.weight": kind})

    values = GGUFCheckpoint(path).tensor("model.layers.0.mlp.up_proj.weight")

    wanted = dequantize(quantize(weights["blk.0.ffn_up.weight"], kind), kind)
    assert values.dtype == np.float32
    assert np.array_equal(values, wanted)
    assert np.abs(values - weights["blk.0.ffn_up.weight"]).max() < 0.6


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_are_dequantised(tmp_path, name):
    kind = GGMLQuantizationType[name]
    elements, size = gguf.constants.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(1).integers(0, 60, (3, 2 * size), dtype=np.uint8)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("output_norm.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = GGUFFile(path)
    info = file.tensors["output_norm.weight"]

    assert info.shape == (3, 2 * elements)
    assert np.array_equal(
        dequantize(file.raw(info).reshape(3, -1), kind), dequantize(GGUFReader(path).tensors[0].data, kind)
    )


def test_unknown_tensor_type_is_named_with_what_works(tmp_path):
    path = write_gguf(tmp_path / "model.gguf")
    data = path.read_bytes()
    at = data.index(b"blk.0.ffn_up.weight") + len("blk.0.ffn_up.weight") + 4 + 16
    path.write_bytes(data[:at] + struct.pack("<I", 16) + data[at + 4 :])
    with pytest.raises(ModelError, match=r"'blk.0.ffn_up.weight' is of type IQ2_XXS.*Q4_K"):
        GGUFFile(path)


class TestOptionalAndNeededKeys:
    """A missing optional key has its default, a needed one is named, a doubtful one warns (R-34)."""

    def load(self, folder: Path, **changes: object) -> GGUFCheckpoint:
        return GGUFCheckpoint(write_gguf(folder / "model.gguf", metadata(**changes)))

    def test_name_is_optional(self, tmp_path):
        assert self.load(tmp_path, general__name=None).spec.num_layers == 2

    def test_rope_base_defaults_to_ten_thousand(self, tmp_path):
        spec = self.load(tmp_path, llama__rope__freq_base=None).spec
        assert spec.rope.inverse_frequencies[1] == pytest.approx(10000 ** (-2 / 16))

    def test_kv_heads_default_to_all_heads(self, tmp_path):
        spec = self.load(tmp_path, llama__attention__head_count_kv=None).spec
        assert spec.num_kv_heads == HEADS

    @pytest.mark.parametrize(
        "key",
        [
            "llama.context_length",
            "llama.embedding_length",
            "llama.block_count",
            "llama.feed_forward_length",
            "llama.attention.head_count",
            "llama.attention.layer_norm_rms_epsilon",
        ],
    )
    def test_needed_keys_are_named(self, tmp_path, key):
        with pytest.raises(ModelError, match=f"{key}' is missing and needed"):
            self.load(tmp_path, **{key: None})

    def test_zero_and_absurd_numbers_are_refused(self, tmp_path):
        for key, value in (("llama.block_count", 0), ("llama.block_count", 4_000_000_000), ("llama.context_length", 0)):
            with pytest.raises(ModelError, match=key):
                self.load(tmp_path, **{key: value})

    def test_heads_that_do_not_divide_are_refused(self, tmp_path):
        with pytest.raises(ModelError, match="4 attention heads cannot share 3 key-value heads"):
            self.load(tmp_path, llama__attention__head_count_kv=3)

    @pytest.mark.parametrize("value", [[1, 2, 3], ["a", "b"], "text", 1.5, -1.0, True], ids=repr)
    def test_a_key_of_another_kind_is_named_or_refused(self, tmp_path, value):
        """Every key the loaders read, with a value of a kind that nobody expects there."""
        refused = 0
        for key in metadata():
            wrong = value if key != "general.architecture" else [1, 2]
            path = tmp_path / "model.gguf"
            keys = metadata(**{key: wrong, "general.architecture": "llama"})
            write_gguf(path, keys)
            try:
                describe(resolve(str(path), tmp_path / "cache"))
            except ModelError as error:
                refused += 1
                message = str(error)
                assert "\n" not in message
        assert refused > len(metadata()) // 2, "most keys have one kind only"

    @pytest.mark.parametrize("value", [[1, 2, 3], ["a", "b"], "text"], ids=repr)
    @pytest.mark.parametrize(
        "key",
        [
            "llama.rope.scaling.type",
            "llama.rope.scaling.factor",
            "llama.rope.scale_linear",
            "llama.attention.sliding_window",
            "llama.expert_count",
            "llama.attention.key_length",
            "split.count",
            "general.alignment",
            "tokenizer.ggml.scores",
            "tokenizer.ggml.eot_token_id",
            "tokenizer.ggml.add_eos_token",
            "tokenizer.chat_template.tool_use",
        ],
    )
    def test_an_optional_key_of_another_kind(self, tmp_path, key, value):
        path = write_gguf(tmp_path / "model.gguf", metadata(**{key: value}))
        try:
            describe(resolve(str(path), tmp_path / "cache"))
        except ModelError as error:
            message = str(error)
            assert "\n" not in message

    def test_unknown_architecture_lists_what_works_and_the_way_round(self, tmp_path):
        with pytest.raises(ModelError, match=r"'gemma' is not supported \(llama, mistral, qwen2, qwen3 are\).*optimum"):
            self.load(tmp_path, general__architecture="gemma")

    def test_experts_are_refused(self, tmp_path):
        with pytest.raises(ModelError, match="experts"):
            self.load(tmp_path, llama__expert_count=8)

    def test_sliding_window_only_where_it_cuts_something(self, tmp_path):
        assert self.load(tmp_path, llama__attention__sliding_window=32).spec.sliding_window == 32
        assert self.load(tmp_path, llama__attention__sliding_window=256).spec.sliding_window is None
        assert self.load(tmp_path, llama__attention__sliding_window=0).spec.sliding_window is None

    def test_parts_of_a_split_file_are_refused(self, tmp_path):
        with pytest.raises(ModelError, match="one of 3 parts"):
            self.load(tmp_path, split__count=3)


class TestRopeScaling:
    def spec(self, folder: Path, keys: Mapping[str, object], weights: dict[str, np.ndarray] | None = None):
        return GGUFCheckpoint(write_gguf(folder / "model.gguf", metadata(**keys), weights)).spec.rope

    def wanted(self, **scaling: object):
        return rope_spec("x", theta=10000.0, head_dim=16, scaling=scaling, max_position_embeddings=256)

    def test_linear(self, tmp_path):
        keys = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
        assert self.spec(tmp_path, keys) == self.wanted(rope_type="linear", factor=4.0)

    def test_the_older_linear_key(self, tmp_path):
        assert self.spec(tmp_path, {"llama.rope.scale_linear": 4.0}) == self.wanted(rope_type="linear", factor=4.0)

    def test_yarn_with_its_attention_factor(self, tmp_path):
        keys = {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 64,
        }
        wanted = self.wanted(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
        assert self.spec(tmp_path, keys) == wanted
        assert wanted.attention_factor == pytest.approx(0.1 * np.log(4) + 1)
        keys["llama.rope.scaling.attn_factor"] = 0.5
        assert self.spec(tmp_path, keys).attention_factor == pytest.approx(wanted.attention_factor / 2)

    def test_llama3_factors_from_the_tensor(self, tmp_path):
        plain = np.array(self.wanted().inverse_frequencies)
        scaled = np.array(
            self.wanted(
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ).inverse_frequencies
        )
        factors = (plain / scaled).astype(np.float32)  # what llama.cpp's conversion stores
        rope = self.spec(tmp_path, {}, tensors(rope_freqs__weight=factors))
        assert np.allclose(rope.inverse_frequencies, scaled, rtol=1e-6)

    @pytest.mark.parametrize("factors", [np.zeros(8, np.float32), np.ones(5, np.float32)])
    def test_nonsense_factors_are_refused(self, tmp_path, factors):
        with pytest.raises(ModelError, match="rope_freqs"):
            self.spec(tmp_path, {}, tensors(rope_freqs__weight=factors))

    def test_unknown_scaling_is_refused(self, tmp_path):
        keys = {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 4.0}
        with pytest.raises(ModelError, match=r"'longrope' is not supported \(default, linear, llama3, yarn are\)"):
            self.spec(tmp_path, keys)


class TestDamagedFiles:
    """Whatever is wrong with the bytes, the answer is one line."""

    def files(self, path: Path) -> ModelFiles:
        return resolve(str(path), path.parent / "cache")

    def load_all(self, path: Path) -> int:
        """How many tensors it holds, each of which was read."""
        describe(self.files(path))
        checkpoint = open_checkpoint(self.files(path))
        return len([checkpoint.tensor(name) for name in checkpoint.shapes])

    def test_the_whole_file_loads(self, tmp_path):
        assert self.load_all(write_gguf(tmp_path / "model.gguf")) > 2

    def test_empty_and_foreign_files(self, tmp_path):
        path = tmp_path / "model.gguf"
        for content in (b"", b"GG", b"PK\x03\x04 a zip", b"\x00" * 64):
            path.write_bytes(content)
            with pytest.raises(ModelError, match="not a GGUF file"):
                GGUFFile(path)

    def test_missing_and_unreadable(self, tmp_path):
        with pytest.raises(ModelError, match="cannot be read"):
            GGUFFile(tmp_path / "absent.gguf")
        with pytest.raises(ModelError, match="cannot be read"):
            GGUFFile(tmp_path)

    def test_versions(self, tmp_path):
        path = tmp_path / "model.gguf"
        for version, words in ((1, "version 1 is not supported"), (3 << 24, "big-endian"), (77, "version 77")):
            path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, 0))
            with pytest.raises(ModelError, match=words):
                GGUFFile(path)

    def test_absurd_counts_allocate_nothing(self, tmp_path):
        path = tmp_path / "model.gguf"
        huge = 1 << 62
        for tail in (
            struct.pack("<QQ", huge, 0),
            struct.pack("<QQ", 0, huge),
            struct.pack("<QQQ", 0, 1, huge),  # a key of 2**62 bytes
            struct.pack("<QQQ1sIIQ", 0, 1, 1, b"k", 9, 8, huge),  # an array of 2**62 texts
            struct.pack("<QQQ1sIIQ", 0, 1, 1, b"k", 9, 4, huge),  # and of numbers
            struct.pack("<QQQ1sIIQQ", 0, 1, 1, b"k", 9, 8, 1, huge),  # one text of 2**62 bytes
            struct.pack("<QQQ1sI", 0, 1, 1, b"k", 99),  # an unknown type
            struct.pack("<QQQ1sI", 0, 1, 1, b"k", 9) + struct.pack("<IQ", 9, 1) * 5,  # arrays in arrays in arrays
        ):
            path.write_bytes(b"GGUF" + struct.pack("<I", 3) + tail + b"\x00" * 64)
            with pytest.raises(ModelError, match="damaged or incomplete"):
                GGUFFile(path)

    def test_a_shape_whose_size_overflows(self, tmp_path):
        path = write_gguf(tmp_path / "model.gguf")
        data = path.read_bytes()
        at = data.index(b"blk.0.ffn_up.weight") + len("blk.0.ffn_up.weight") + 4
        for dimensions in ((1 << 63, 2), (1 << 32, 1 << 32), (0, 5)):
            path.write_bytes(data[:at] + struct.pack("<QQ", *dimensions) + data[at + 16 :])
            with pytest.raises(ModelError, match="ffn_up"):
                GGUFFile(path)

    def test_a_tensor_that_is_missing_or_of_another_shape(self, tmp_path):
        path = write_gguf(tmp_path / "model.gguf", weights=tensors(**{"blk.1.ffn_down.weight": None}))
        with pytest.raises(ModelError, match=r"'model.layers.1.mlp.down_proj.weight' is missing"):
            open_checkpoint(self.files(path))
        wrong = np.zeros((KV_HEADS, HIDDEN), np.float32)
        path = write_gguf(tmp_path / "model.gguf", weights=tensors(**{"blk.1.attn_k.weight": wrong}))
        with pytest.raises(ModelError, match=r"k_proj.weight' has the shape \[2, 64\].*\[32, 64\]"):
            open_checkpoint(self.files(path))
        path = write_gguf(tmp_path / "model.gguf", weights=tensors(token_embd__weight=None))
        with pytest.raises(ModelError, match="token_embd.weight"):
            describe(self.files(path))

    def test_more_tokens_than_the_embedding_has_rows(self, tmp_path):
        short = np.zeros((VOCABULARY - 8, HIDDEN), np.float32)
        path = write_gguf(tmp_path / "model.gguf", weights=tensors(token_embd__weight=short))
        with pytest.raises(ModelError, match="do not belong together"):
            describe(self.files(path))

    def test_cut_short_anywhere(self, tmp_path):
        whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
        path = tmp_path / "model.gguf"
        for length in [*range(0, 6000, 13), *range(6000, len(whole) - 31, 9973)]:
            path.write_bytes(whole[:length])
            with pytest.raises(ModelError):
                self.load_all(path)

    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(changes=st.lists(st.tuples(st.integers(0, 7000), st.integers(0, 255)), min_size=1, max_size=4))
    @example(changes=[(8, 255)])
    @example(changes=[(23, 255)])
    def test_changed_bytes_load_or_are_refused(self, tmp_path, changes):
        base = tmp_path / "base.gguf"
        if not base.exists():
            write_gguf(base)
        data = bytearray(base.read_bytes())
        for position, value in changes:
            data[position] = value
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        try:
            self.load_all(path)
        except ModelError as error:
            message = str(error)
            assert "\n" not in message
