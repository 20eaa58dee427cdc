"""Symmetric int8 weights, with one scale for each output channel, rounded to float16.

``int8``: the plugin quantises activations as it computes (dynamic quantisation) and multiplies integers.
``int8-float32``: the same values, held as float32 in the layers, for processors without integer dot products;
embedding and head stay int8 (docs/decisions/0011).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from openvino import Node, Type
from openvino import opset13 as op

from ekiden.backends.openvino.weights.format import FloatArray, WeightFormat, joined
from ekiden.models.architectures.spec import Checkpoint
from ekiden.models.architectures.weights import EMBEDDING, HEAD

DYNAMIC_QUANTISATION_GROUP = 64


def quantise_per_channel(weight: FloatArray) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Symmetric int8 values ``[out, in]`` and float16 scales ``[out, 1]``; ``values * scales`` approximates the weight.

    Values are divided by the scale as stored, so that rounding the scale to float16 adds no error.
    """
    scale = (np.abs(weight).max(axis=1, keepdims=True) / 127).astype(np.float16)
    scale[scale == 0] = 1
    values = weight / scale.astype(np.float32)
    np.rint(values, out=values)
    np.clip(values, -127, 127, out=values)
    return values.astype(np.int8), scale


def int8_matrix(weight: FloatArray) -> Node:
    """A weight ``[out, in]`` in the form that the plugin takes for compressed weights."""
    values, scale = quantise_per_channel(weight)
    return op.multiply(op.convert(op.constant(values), Type.f32), op.constant(scale.astype(np.float32)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8(WeightFormat):
    """``int8``."""

    name: str = "int8"
    dynamic_group: int = DYNAMIC_QUANTISATION_GROUP
    fuses_activation: bool = True
    joins_products: bool = True

    def matrix(self, checkpoint: Checkpoint, *names: str) -> Node:
        return int8_matrix(joined(checkpoint, names))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandedInt8(WeightFormat):
    """``int8-float32``."""

    name: str = "int8-float32"

    def matrix(self, checkpoint: Checkpoint, *names: str) -> Node:
        (name,) = names
        weight = checkpoint.tensor(name)
        if name in (EMBEDDING, HEAD):
            return int8_matrix(weight)
        values, scale = quantise_per_channel(weight)
        return op.constant(values.astype(np.float32) * scale.astype(np.float32))
