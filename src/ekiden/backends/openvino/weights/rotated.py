"""int8 weights of a rotated model (``rotation.py``).

``int8-rotated``: the plugin quantises activations as it computes, as for ``int8``. Since no channel sticks out, more of
them may share a scale, which costs less time and no accuracy.

``int8-static``: what products read after a norm is quantised with one constant instead. The mean square of a norm's
output is 1, and a rotated one is close to Gaussian, so the range needs no data: from -4 to 4, which is where 255 evenly
spaced levels have the least mean square error for a Gaussian (Max 1960, "Quantizing for minimum distortion"). The
plugin's low-precision passes then choose products of bytes. The attention's output projection and the MLP's down
projection follow no norm; they stay as in ``int8-rotated``.

In both, the head reads rotated states and the last norm's weight is part of it. What is to be read from the states
themselves is rotated back on the host.
"""

import base64
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import openvino as ov
from openvino import Node, Type
from openvino import opset13 as op

from ekiden.backends.openvino.weights.format import FloatArray, Reader, WeightFormat, joined
from ekiden.backends.openvino.weights.int8 import DYNAMIC_QUANTISATION_GROUP, int8_matrix, quantise_per_channel
from ekiden.backends.openvino.weights.rotation import SEED, Rotation, rotated
from ekiden.models.architectures.spec import Checkpoint, ModelSpec
from ekiden.models.architectures.weights import FINAL_NORM

BOUND = 4.0
"""The constant range is from minus this to this, in units of a norm's output."""

_LEVELS = 255
_READ_AFTER_A_NORM = frozenset({Reader.QKV, Reader.GATE_UP, Reader.HEAD})
_READ_BY_STATIC_PRODUCTS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head")
_LARGEST_GROUP, _GROUP_STEP = 256, 32
_NORM_NOTE = ["ekiden", "final_norm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatedInt8(WeightFormat):
    """``int8-rotated``."""

    name: str = "int8-rotated"
    fuses_activation: bool = True
    joins_products: bool = True
    details: Mapping[str, str] = field(default_factory=lambda: {"rotation_seed": str(SEED)})

    def group(self, spec: ModelSpec, model: ov.Model) -> int:
        """The largest group that divides every product's input, since others are computed slowly.

        Up to 256 channels, in steps of 32; where there is none, the group of ``int8``.
        """
        common = math.gcd(spec.hidden_size, spec.intermediate_size, spec.num_heads * spec.head_dim)
        fitting = (size for size in range(_LARGEST_GROUP, 0, -_GROUP_STEP) if common % size == 0)
        return next(fitting, DYNAMIC_QUANTISATION_GROUP)

    def prepare(self, spec: ModelSpec, checkpoint: Checkpoint) -> tuple[ModelSpec, Checkpoint]:
        return rotated(spec, checkpoint)

    def matrix(self, checkpoint: Checkpoint, *names: str) -> Node:
        return _compressed(joined(checkpoint, names))

    def annotate(self, model: ov.Model, checkpoint: Checkpoint) -> None:
        """Note the last norm's weight, which states lack; the graph is all that a later start reads."""
        norm = checkpoint.tensor(FINAL_NORM).astype("<f4")
        model.set_rt_info(base64.b64encode(norm.tobytes()).decode(), _NORM_NOTE)

    def states(self, model: ov.Model) -> Callable[[FloatArray], FloatArray]:
        norm = np.frombuffer(base64.b64decode(model.get_rt_info(_NORM_NOTE).astype(str)), "<f4")
        rotation = Rotation(len(norm))
        return lambda given: rotation.back(given) * norm


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticInt8(RotatedInt8):
    """``int8-static``."""

    name: str = "int8-static"
    joins_products: bool = False
    details: Mapping[str, str] = field(
        default_factory=lambda: {"rotation_seed": str(SEED), "static_range": f"{BOUND:g}"}
    )

    def matrix(self, checkpoint: Checkpoint, *names: str) -> Node:
        (name,) = names
        weight = checkpoint.tensor(name)
        if name.removesuffix(".weight").endswith(_READ_BY_STATIC_PRODUCTS):
            return int8_matrix(weight)
        return _compressed(weight)

    def activation(self, x: Node, reader: Reader) -> Node:
        if reader not in _READ_AFTER_A_NORM:
            return x
        low, high = (op.constant(np.full((1, 1, 1), bound, np.float32)) for bound in (-BOUND, BOUND))
        return op.fake_quantize(x, low, high, low, high, _LEVELS)


def _compressed(weight: FloatArray) -> Node:
    """An int8 weight ``[out, in]`` that is multiplied by its scale as float16.

    The plugin computes it as it does one scaled as float32. But its low-precision passes, which run where a graph has
    constant ranges, do not see it, and so leave the products alone that read activations without such a range.
    """
    values, scale = quantise_per_channel(weight)
    return op.convert(op.multiply(op.convert(op.constant(values), Type.f16), op.constant(scale)), Type.f32)
