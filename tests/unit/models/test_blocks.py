"""Matrices of four bits as their file stores them: the same bits as the dequantised ones."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

from ekiden.models.blocks import READERS
from ekiden.models.gguf import GGUFCheckpoint
from tests.unit.models.gguf_files import write_gguf


@pytest.mark.parametrize("name", READERS)
def test_blocks_have_the_bits_of_what_the_gguf_package_dequantises(name: str):
    kind = GGMLQuantizationType[name]
    _, size = GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(0).integers(0, 256, (5, 3, size), dtype=np.uint8)
    blocks[..., 1] &= 0x3F  # no infinite scales and minimums
    blocks[..., 3] &= 0x3F
    rows = blocks.reshape(5, -1)
    found = READERS[name](rows)
    assert found.values.max() == 15
    assert np.array_equal(found.weights(), dequantize(rows, kind))


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1])
def test_a_checkpoint_gives_the_blocks_of_its_four_bit_matrices_in_the_order_of_its_rows(tmp_path: Path, kind):
    types = {"blk.0.attn_q.weight": kind, "blk.1.attn_k.weight": kind, "blk.1.ffn_down.weight": kind}
    checkpoint = GGUFCheckpoint(write_gguf(tmp_path / "model.gguf", types=types))
    layers = "model.layers."
    for name in ("0.self_attn.q_proj.weight", "1.self_attn.k_proj.weight", "1.mlp.down_proj.weight"):
        blocks = checkpoint.blocks(layers + name)
        assert blocks is not None
        assert np.array_equal(blocks.weights(), checkpoint.tensor(layers + name)), name
    assert checkpoint.blocks(layers + "0.mlp.down_proj.weight") is None
    assert checkpoint.blocks("model.norm.weight") is None
