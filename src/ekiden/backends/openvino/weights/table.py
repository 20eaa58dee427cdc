"""The weight formats by their names, and which of them a configuration means on this machine."""

from dataclasses import dataclass

import numpy as np

from ekiden.backends.openvino import machine
from ekiden.backends.openvino.weights.format import WeightFormat
from ekiden.backends.openvino.weights.int4 import Int4
from ekiden.backends.openvino.weights.int8 import ExpandedInt8, Int8
from ekiden.backends.openvino.weights.plain import Float16, Float32
from ekiden.backends.openvino.weights.rotated import RotatedInt8, StaticInt8
from ekiden.config import AUTO_WEIGHTS as AUTO
from ekiden.config import ModelConfig
from ekiden.models.architectures.spec import ModelSpec

INT8, EXPANDED, ROTATED = Int8(), ExpandedInt8(), RotatedInt8()
FORMATS: dict[str, WeightFormat] = {
    each.name: each for each in (INT8, EXPANDED, ROTATED, StaticInt8(), Int4(), Float16(), Float32())
}

EXPANDED_SHARE = 1 / 8
"""The largest share of the machine's memory that weights are expanded into unless the user asks for it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A format, and why it was chosen, for the log and the lineage."""

    format: WeightFormat
    reason: str


def choose_format(config: ModelConfig, spec: ModelSpec) -> Choice:
    """The format that the weights of the model ``spec`` are computed in.

    ``auto`` is a rule and not a measurement, so that every start on a machine gives the same tokens: rotated int8
    where integers are multiplied (docs/decisions/0025), int8 elsewhere.
    """
    asked, expand = config.weights, config.expand_weights
    no_integers = machine.lacks_integer_dot_products()
    if asked == AUTO and not no_integers and expand != "always":
        return Choice(ROTATED, "auto: this processor is not known to lack integer dot products")
    weights = INT8 if asked == AUTO else FORMATS[asked]
    why = "auto: this processor lacks integer dot products" if asked == AUTO and no_integers else "set"
    if weights is not INT8 or expand == "never":
        return Choice(weights, why)
    if expand == "always":
        return Choice(EXPANDED, "expand_weights is always")
    fits = spec.layer_weights * np.dtype(np.float32).itemsize <= machine.memory_bytes() * EXPANDED_SHARE
    if no_integers and fits:
        return Choice(EXPANDED, "expand_weights is auto and this processor lacks integer dot products")
    return Choice(weights, why)
