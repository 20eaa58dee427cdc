"""The weight formats by their names, and which of them a configuration means on this machine."""

import numpy as np

from ekiden.backends.openvino import machine
from ekiden.backends.openvino.weights.format import WeightFormat
from ekiden.backends.openvino.weights.int4 import Int4
from ekiden.backends.openvino.weights.int8 import ExpandedInt8, Int8
from ekiden.backends.openvino.weights.plain import Float16, Float32
from ekiden.config import ModelConfig
from ekiden.models.architectures.spec import ModelSpec

INT8, EXPANDED = Int8(), ExpandedInt8()
FORMATS: dict[str, WeightFormat] = {each.name: each for each in (INT8, EXPANDED, Int4(), Float16(), Float32())}

EXPANDED_SHARE = 1 / 8
"""The largest share of the machine's memory that weights are expanded into unless the user asks for it."""


def weight_format(config: ModelConfig, spec: ModelSpec) -> WeightFormat:
    """The format that the weights of the model ``spec`` are computed in."""
    weights, expand = FORMATS[config.weights], config.expand_weights
    if weights is not INT8 or expand == "never":
        return weights
    fits = spec.layer_weights * np.dtype(np.float32).itemsize <= machine.memory_bytes() * EXPANDED_SHARE
    return EXPANDED if expand == "always" or (machine.lacks_integer_dot_products() and fits) else weights
