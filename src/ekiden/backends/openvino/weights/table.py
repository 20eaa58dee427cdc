"""The weight formats by their names, and which of them a configuration means on this machine."""

from dataclasses import dataclass

import numpy as np

from ekiden.backends.openvino import kernels, machine
from ekiden.backends.openvino.weights.format import WeightFormat
from ekiden.backends.openvino.weights.int4 import Int4
from ekiden.backends.openvino.weights.int8 import ExpandedInt8, Int8
from ekiden.backends.openvino.weights.kernels import KernelInt8
from ekiden.backends.openvino.weights.plain import Float16, Float32
from ekiden.backends.openvino.weights.rotated import RotatedInt8, StaticInt8
from ekiden.config import AUTO_WEIGHTS as AUTO
from ekiden.config import ConfigError, ModelConfig
from ekiden.models.architectures.spec import ModelSpec

INT8, EXPANDED, ROTATED = Int8(), ExpandedInt8(), RotatedInt8()
STATIC, KERNELS = StaticInt8(), KernelInt8()
PLUGIN_FORMATS: dict[str, WeightFormat] = {
    each.name: each for each in (INT8, EXPANDED, ROTATED, STATIC, Int4(), Float16(), Float32())
}
"""Those whose graphs have OpenVINO's own operations only."""
FORMATS = {**PLUGIN_FORMATS, KERNELS.name: KERNELS}

FASTER_WITH = frozenset({"avx2", "avx512_vnni"})
"""Instruction sets with which our kernels were measured to be faster than the plugin's (docs/decisions/0034)."""

EXPANDED_SHARE = 1 / 8
"""The largest share of the machine's memory that weights are expanded into unless the user asks for it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A format, and why it was chosen, for the log and the lineage."""

    format: WeightFormat
    reason: str


def choose_format(config: ModelConfig, spec: ModelSpec, *, own_kernels: bool = True) -> Choice:
    """The format that the weights of the model ``spec`` are computed in.

    ``auto`` is a rule and not a measurement, so that every start on a machine gives the same tokens: our own kernels
    where they are installed and known to be faster (docs/decisions/0034), else rotated int8 where the plugin multiplies
    integers (0025), else int8. Without ``own_kernels`` no format is chosen whose graph only a program with our
    extension can read.

    Raises :class:`ConfigError` when our kernels are asked for and cannot be used, and for products of bytes where they
    overflow.
    """
    asked, expand = config.weights, config.expand_weights
    no_integers = machine.lacks_integer_dot_products()
    if asked == AUTO and expand == "auto" and own_kernels and kernels_are_faster() and KERNELS.misfit(spec) is None:
        return Choice(KERNELS, f"auto: {kernels.PACKAGE} is installed and faster on this processor")
    if asked == AUTO and not no_integers and expand != "always":
        return Choice(ROTATED, "auto: this processor is not known to lack integer dot products")
    if asked == KERNELS.name and not kernels.installed():
        raise ConfigError(
            f"weights is {KERNELS.name}, but {kernels.installed().reason}; install it as the README says, or choose "
            "--weights auto"
        )
    if asked == STATIC.name and no_integers:
        # The plugin adds pairs of products in 16 bits there, which are too few: errors are five to nine times as large.
        raise ConfigError(
            f"weights is {STATIC.name}, but this processor lacks integer dot products (VNNI), where products of "
            "bytes overflow; choose --weights auto"
        )
    known = FORMATS if own_kernels else PLUGIN_FORMATS
    weights = INT8 if asked == AUTO else known.get(asked, INT8)
    why = "auto: this processor lacks integer dot products" if asked == AUTO and no_integers else "set"
    if weights is not INT8 or expand == "never":
        return Choice(weights, why)
    if expand == "always":
        return Choice(EXPANDED, "expand_weights is always")
    fits = spec.layer_weights * np.dtype(np.float32).itemsize <= machine.memory_bytes() * EXPANDED_SHARE
    if no_integers and fits:
        return Choice(EXPANDED, "expand_weights is auto and this processor lacks integer dot products")
    return Choice(weights, why)


def kernels_are_faster() -> bool:
    """Whether ours are there and known to beat the plugin's; against AMX they have not been measured."""
    return kernels.installed().instructions in FASTER_WITH and not machine.multiplies_matrices()
