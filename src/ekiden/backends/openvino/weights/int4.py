"""Four-bit weights in groups (``int4``): half of int8's memory.

Each matrix of the layers becomes what loses least:

1. what a GGUF file stores in four bits (Q4_0, Q4_1, Q4_K) keeps its values and its groups of 32, without another
   rounding. A weight there is ``value * scale + minimum``. The plugin's integer kernels take whole zero points only, so
   it becomes ``(value - 8) * scale`` and a remainder for each group, which is multiplied by the group's sum of
   activations in a small product of its own. Where all remainders are 0, as in Q4_0, that product is left out;
2. what such a file stores in more than four bits, because it matters more, becomes int8 for each channel, as do
   embedding and head;
3. weights of a file without four bits become groups with whole zero points, which are searched (``groups.py``). They
   are as large as fits, up to 128, because each group costs the kernels time.

Why, and what else was tried: docs/decisions/0026.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import Node, Type
from openvino import opset13 as op

from ekiden.backends.openvino.weights.format import FloatArray, WeightFormat, joined
from ekiden.backends.openvino.weights.groups import quantise_groups
from ekiden.backends.openvino.weights.int8 import int8_matrix
from ekiden.models.architectures.spec import Checkpoint, ModelSpec
from ekiden.models.architectures.weights import EMBEDDING, HEAD
from ekiden.models.blocks import GROUP, Blocks, StoresBlocks
from ekiden.models.errors import ModelError

_MIDDLE = np.uint8(8)
"""What is subtracted from values of 0 to 15 to make them signed."""


_SIZES = (128, 64, GROUP)
"""Sizes of the groups that are made, the best first."""
_GROUP_NOTE = ["ekiden", "weight_group"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4(WeightFormat):
    """``int4``."""

    name: str = "int4"
    fuses_activation: bool = True
    joins_products: bool = True

    def group(self, spec: ModelSpec, model: ov.Model) -> int:
        """That of the weights: the kernels are slow where more activations share a scale than weights do."""
        return int(model.get_rt_info(_GROUP_NOTE).astype(str))

    def prepare(self, spec: ModelSpec, checkpoint: Checkpoint) -> tuple[ModelSpec, Checkpoint]:
        """Raises :class:`ModelError` for a width that is not a multiple of the smallest group."""
        for name in _matrices(checkpoint):
            if (width := checkpoint.shapes[name][-1]) % GROUP:
                raise ModelError(
                    f"weights is int4, whose groups are {GROUP} wide, but {name} is {width} wide, which is not a "
                    "multiple of that; choose --weights int8"
                )
        return spec, checkpoint if _has_blocks(checkpoint) else InGroups(checkpoint)

    def annotate(self, model: ov.Model, checkpoint: Checkpoint) -> None:
        """Note the size of the groups; the graph is all that a later start reads."""
        size = GROUP if _has_blocks(checkpoint) else InGroups(checkpoint).group
        model.set_rt_info(str(size), _GROUP_NOTE)

    def matrix(self, checkpoint: Checkpoint, *names: str) -> Node:
        if names[0] in (EMBEDDING, HEAD):
            return int8_matrix(joined(checkpoint, names))
        return _layer_matrix(checkpoint, names)[0]

    def product(self, x: Node, checkpoint: Checkpoint, *names: str) -> Node:
        kinds = {_is_four_bits(checkpoint, name) for name in names}
        if len(kinds) > 1:
            return op.concat([self.product(x, checkpoint, name) for name in names], 2)
        matrix, remainders = _layer_matrix(checkpoint, names)
        product = op.matmul(x, matrix, False, True)
        if remainders is None:
            return product
        groups = op.reshape(x, op.constant(np.array([0, 0, -1, GROUP], np.int64)), True)
        sums = op.reduce_sum(groups, op.constant(np.int64(3)), False)
        return op.add(product, op.matmul(sums, op.constant(remainders), False, True))


class InGroups:
    """A checkpoint whose matrices are to become groups of one size, :attr:`group`: the largest that divides all."""

    def __init__(self, inner: Checkpoint) -> None:
        self.shapes, self.tensor = inner.shapes, inner.tensor
        widths = {inner.shapes[name][-1] for name in _matrices(inner)}
        self.group = next(size for size in _SIZES if not any(width % size for width in widths))


def group_remainders(blocks: Blocks) -> FloatArray | None:
    """What ``(value - 8) * scale`` lacks in each group, ``[out, in / group]``; None when that is nothing."""
    remainders = (blocks.minimums + _MIDDLE * blocks.scales)[..., 0]
    return remainders if remainders.any() else None


def _layer_matrix(checkpoint: Checkpoint, names: Sequence[str]) -> tuple[Node, FloatArray | None]:
    """Matrices of a layer, one after the other, in the form that is given above for all of them, and the remainders of
    their groups if they have any."""
    if isinstance(checkpoint, InGroups):
        found = quantise_groups(joined(checkpoint, names), checkpoint.group)
        centred = op.subtract(_four_bits(found.values, Type.u4), _four_bits(found.zeros, Type.u4))
        return _scaled(centred, found.scales.astype(np.float32)), None
    stored = [checkpoint.blocks(name) for name in names] if isinstance(checkpoint, StoresBlocks) else []
    parts = [each for each in stored if each is not None]
    if len(parts) < len(names):
        return int8_matrix(joined(checkpoint, names)), None
    blocks = Blocks(*(np.concatenate(each) for each in zip(*parts, strict=True)))
    return _scaled(_four_bits(blocks.values ^ _MIDDLE, Type.i4), blocks.scales), group_remainders(blocks)


def _is_four_bits(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a layer's matrix is stored so."""
    return isinstance(checkpoint, StoresBlocks) and checkpoint.blocks(name) is not None


def _matrices(checkpoint: Checkpoint) -> list[str]:
    """The names of the layers' matrices."""
    return [name for name in checkpoint.shapes if name.endswith("_proj.weight")]


def _has_blocks(checkpoint: Checkpoint) -> bool:
    return any(_is_four_bits(checkpoint, name) for name in _matrices(checkpoint))


def _four_bits(values: npt.NDArray[np.uint8], kind: Type) -> Node:
    """Values of four bits, the first of each pair in the lower half of a byte, converted to float32."""
    pairs = values.reshape(-1, 2)
    tensor = ov.Tensor(kind, ov.Shape(values.shape))
    tensor.data[:] = (pairs[:, 0] | pairs[:, 1] << 4).reshape(tensor.data.shape)
    return op.convert(op.constant(tensor), Type.f32)


def _scaled(values: Node, scales: FloatArray) -> Node:
    """Groups times their scales, as a matrix ``[out, in]``."""
    scaled = op.multiply(values, op.constant(scales))
    rows, groups, group = values.output(0).get_shape()
    return op.reshape(scaled, op.constant(np.array([rows, groups * group], np.int64)), False)
