"""Four-bit weights: a file's blocks keep their values, and groups are close."""

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from gguf import GGMLQuantizationType
from openvino import Type
from openvino import opset13 as op

from ekiden.backends.openvino import loader
from ekiden.backends.openvino.graph import build_model
from ekiden.backends.openvino.weights.format import FloatArray
from ekiden.backends.openvino.weights.groups import LEVELS, quantise_groups
from ekiden.backends.openvino.weights.int4 import InGroups, Int4, group_remainders
from ekiden.models.architectures.spec import Checkpoint
from ekiden.models.errors import ModelError
from ekiden.models.gguf import GGUFCheckpoint
from ekiden.models.load import describe, open_checkpoint
from ekiden.models.resolve import ModelFiles, files_in_folder
from tests.backends.driving import load_folder, sequence, step
from tests.unit.models.gguf_files import write_gguf

QUERY, DOWN = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"
TYPES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def gguf_of(path: Path, **kinds: GGMLQuantizationType) -> GGUFCheckpoint:
    """A small model with matrices of layers 0 and 1 in the given types, by llama.cpp's names."""
    types = {f"blk.{layer}.{part}.weight": kind for part, kind in kinds.items() for layer in (0, 1)}
    return GGUFCheckpoint(write_gguf(path / "model.gguf", types=types))


def multiplied(checkpoint: Checkpoint, *names: str) -> FloatArray:
    """What the product multiplies by, ``[out, in]``: each row of an identity matrix picks one column, and adds 0."""
    width = checkpoint.shapes[names[0]][1]
    x = op.parameter([1, width, width], Type.f32)
    model = ov.Model([Int4().product(x, checkpoint, *names)], [x])
    exact = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0", "INFERENCE_PRECISION_HINT": "f32"}
    found = ov.Core().compile_model(model, "CPU", exact)([np.eye(width, dtype=np.float32)[None]])[0]
    weights: FloatArray = found[0].T
    return weights


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1])
def test_a_files_own_blocks_are_multiplied_to_the_bit(tmp_path: Path, kind: GGMLQuantizationType):
    checkpoint = gguf_of(tmp_path, attn_q=kind, ffn_down=kind)
    for name in (QUERY, DOWN):
        assert np.array_equal(multiplied(checkpoint, name), checkpoint.tensor(name)), name


def test_blocks_that_are_symmetric_need_no_second_product(tmp_path: Path):
    checkpoint = gguf_of(tmp_path, attn_q=GGMLQuantizationType.Q4_0, ffn_down=GGMLQuantizationType.Q4_1)
    symmetric, asymmetric = checkpoint.blocks(QUERY), checkpoint.blocks(DOWN)
    assert symmetric is not None
    assert asymmetric is not None
    assert group_remainders(symmetric) is None
    assert group_remainders(asymmetric) is not None


def test_each_tensor_of_a_mixed_file_keeps_its_own_precision(tmp_path: Path):
    kinds = dict.fromkeys(TYPES, GGMLQuantizationType.Q4_0)
    checkpoint = gguf_of(tmp_path, **kinds | dict.fromkeys(("attn_v", "ffn_down"), GGMLQuantizationType.Q8_0))
    graph = build_model(checkpoint.spec, checkpoint, Int4())
    types = [node.get_element_type().get_type_name() for node in graph.get_ops() if node.get_type_name() == "Constant"]
    assert types.count("i4") == 2 * 4, "query, key and output; gate and up are one"
    assert types.count("i8") == 2 * 2 + 1, "value and down, and the table"
    assert types.count("u4") == 0


@pytest.mark.parametrize("value", [GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0])
def test_products_of_the_same_states_are_those_of_each_matrix(tmp_path: Path, value: GGMLQuantizationType):
    kinds = {"attn_q": GGMLQuantizationType.Q4_0, "attn_k": GGMLQuantizationType.Q4_1, "attn_v": value}
    checkpoint = gguf_of(tmp_path, **kinds)
    names = [QUERY.replace("q_proj", part) for part in ("q_proj", "k_proj", "v_proj")]
    each = [multiplied(checkpoint, name) for name in names]
    assert np.array_equal(multiplied(checkpoint, *names), np.concatenate(each))


def test_weights_without_blocks_become_groups(reference_dir: Path, tmp_path: Path):
    files = files_in_folder(reference_dir / "llama", "llama", tmp_path)
    spec = describe(files).spec
    assert spec is not None
    _, checkpoint = Int4().prepare(spec, open_checkpoint(files))
    found = quantise_groups(checkpoint.tensor(QUERY), 32)
    assert np.array_equal(multiplied(checkpoint, QUERY), found.weights())


def test_a_searched_group_is_no_worse_than_a_rounded_one():
    """By squared errors in proportion to the weights' sizes."""
    weight = np.random.default_rng(0).standard_t(4, (64, 256)).astype(np.float32)
    weight[:2, :32] = 0
    weight[2:4, :32] = np.abs(weight[2:4, :32])
    found = quantise_groups(weight, 32)
    groups = weight.reshape(64, 8, 32)
    sizes = np.abs(groups)
    errors = (sizes * np.square(found.weights().reshape(groups.shape) - groups)).sum(-1)
    low, high = np.minimum(groups.min(-1, keepdims=True), 0), np.maximum(groups.max(-1, keepdims=True), 0)
    step = (high - low) / LEVELS
    step[step == 0] = 1
    zero = np.rint(-low / step)
    rounded = (np.clip(np.rint(groups / step) + zero, 0, LEVELS) - zero) * step
    plain = (sizes * np.square(rounded - groups)).sum(-1)
    # The scale's rounding to float16 moves a weight by up to 2**-11 of itself.
    assert (errors <= plain + 32 * sizes.max(-1) * (2.0**-10 * sizes.max(-1)) ** 2).all()
    assert errors.sum() < 0.96 * plain.sum()
    assert not errors[:2, 0].any()


@pytest.mark.parametrize("family", ["llama-bias", "qwen2", "qwen3"])
def test_logits_are_those_of_the_weights_in_the_graph(
    family: str, reference_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Against float32 of the same four-bit weights, what is left is what int8 is allowed as well: its activations."""
    tokens = np.load(reference_dir / family / "logits.npz")["input_ids"].tolist()
    given = load_folder(reference_dir / family, tmp_path / "int4", weights="int4", kv_cache_size="8MiB")
    told = ("weights", "activation_group", "self_test")
    assert [given.info.details[each] for each in told] == ["int4", "32", "passed"]
    logits = step(given, [(sequence(tokens, [0, 1]), len(tokens))])[0]

    def dequantised(files: ModelFiles) -> Checkpoint:
        checkpoint = open_checkpoint(files)
        read = checkpoint.tensor

        def tensor(name: str) -> FloatArray:
            return quantise_groups(read(name), 32).weights() if name.endswith("_proj.weight") else read(name)

        monkeypatch.setattr(checkpoint, "tensor", tensor)
        return checkpoint

    monkeypatch.setattr(loader, "open_checkpoint", dequantised)
    exact = load_folder(reference_dir / family, tmp_path / "fp32", weights="fp32", kv_dtype="f32", kv_cache_size="8MiB")
    expected = step(exact, [(sequence(tokens, [0, 1]), len(tokens))])[0]
    assert np.abs(logits - expected).max() <= 0.25 * expected.std()


def test_a_width_that_is_not_whole_groups_is_refused_with_the_way_out(tmp_path: Path):
    checkpoint = gguf_of(tmp_path)
    checkpoint.shapes[DOWN] = (64, 100)
    with pytest.raises(ModelError, match=r"mlp\.down_proj\.weight is 100 wide.*choose --weights int8"):
        Int4().prepare(checkpoint.spec, checkpoint)


@pytest.mark.parametrize(("widths", "group"), [((2048, 8192), 128), ((576, 1536), 64), ((64, 96), 32)])
def test_made_groups_are_the_largest_that_divide_every_width(widths: tuple[int, int], group: int):
    class Shapes:
        shapes = {f"{number}_proj.weight": (8, width) for number, width in enumerate(widths)}

        def tensor(self, name: str) -> FloatArray:
            raise AssertionError(f"{name} is read")

    assert InGroups(Shapes()).group == group
