"""Weights as 16 or 32 bits of floating point: no activation is quantised."""

from dataclasses import dataclass

import numpy as np
from openvino import Node, Type
from openvino import opset13 as op

from ekiden.backends.openvino.weights.format import WeightFormat, joined
from ekiden.models.architectures.spec import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Float16(WeightFormat):
    """``fp16``."""

    name: str = "fp16"

    def matrix(self, checkpoint: Checkpoint, *names: str) -> Node:
        return op.convert(op.constant(joined(checkpoint, names).astype(np.float16)), Type.f32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Float32(WeightFormat):
    """``fp32``."""

    name: str = "fp32"

    def matrix(self, checkpoint: Checkpoint, *names: str) -> Node:
        return op.constant(joined(checkpoint, names))
