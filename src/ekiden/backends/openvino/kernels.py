"""Ekiden's own kernels, an optional package with an OpenVINO extension: whether they can be used, and their nodes."""

import ctypes
import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import Node, Output
from openvino import opset13 as op
from openvino.utils.node_factory import NodeFactory

log = logging.getLogger(__name__)

PACKAGE = "ekiden-kernels"
VERSION = "0.2.0"
"""Of the package whose operations the graphs below have. Increase it there and here when they change."""
LINEAR, BLOCK = "Int8Linear", "Int8Block"
INSTRUCTION_SETS = ("portable", "avx2", "avx2_vnni", "avx512_vnni")
"""By their numbers in the library (``kernels/src/isa.h``), from the slowest to the fastest."""

_CHANNELS, _INPUTS = 16, 4
"""The kernels read weights in blocks of so many output channels times so many inputs."""
_GROUPS = range(256, 0, -32)
"""Sizes of the groups of activations that share a scale, the best first."""

Quantised = tuple[npt.NDArray[np.int8], npt.NDArray[np.floating]]
"""A weight ``[out, in]`` and its scales, ``[out]`` or ``[out, 1]``."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """``path`` is that of the extension, ``version`` that of the package, and ``instructions`` the set that it uses.

    All are empty where the kernels cannot be used, for the given ``reason``.
    """

    path: str = ""
    version: str = ""
    instructions: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.path)


@functools.cache
def installed() -> Kernels:
    """The kernels, if the package is there, was built for the OpenVINO that runs, and computes right here."""
    try:
        import ekiden_kernels
    except ImportError:
        return Kernels(reason=f"the package {PACKAGE} is not installed")
    if ov.get_version() != ekiden_kernels.OPENVINO:
        return Kernels(
            reason=f"{PACKAGE} was built for OpenVINO {ekiden_kernels.OPENVINO}, and this is {ov.get_version()}"
        )
    version = metadata.version(PACKAGE)
    if version != VERSION:
        return Kernels(reason=f"{PACKAGE} is version {version}, and {VERSION} is needed")
    path = str(ekiden_kernels.LIBRARY)
    try:
        chosen = _fastest_right(ctypes.CDLL(path))
    except (OSError, AttributeError) as error:  # no library, or one of another version without these functions
        return Kernels(reason=f"{PACKAGE} cannot be loaded: {error}")
    return Kernels(path, version, chosen)


def _fastest_right(library: Any) -> str:
    """Make the library use the fastest instruction set that gives the bits of the portable code here; its name."""
    for number, name in reversed(list(enumerate(INSTRUCTION_SETS))):
        if library.ekiden_usable(number):
            if library.ekiden_agrees(number):
                library.ekiden_prefer(number)
                return name
            log.warning("the kernels for %s compute wrongly on this processor; slower ones are used", name)
    raise AssertionError("the portable code agrees with itself")


def group_of(width: int) -> int | None:
    """How many of ``width`` inputs share a scale; None where the kernels have no group that divides it."""
    return next((size for size in _GROUPS if width % size == 0), None)


def linear(x: Node, weight: Quantised) -> Node:
    """``x [..., in]`` times a weight: ``[..., out]``."""
    channels, width = weight[0].shape
    attributes = {"channels": channels, "group": _group(width)}
    node: Node = _factory().create(LINEAR, [x.output(0), _constant(weight)], attributes)
    return node


def block(
    residual: Node | Output,
    attended: Node,
    *,
    output: Quantised,
    gate_up: Quantised,
    down: Quantised,
    projections: Sequence[Quantised],
    epsilon: float,
) -> Sequence[Output]:
    """All between two attentions (``kernels/src/block.h``): the residual stream, and query, key and value if given
    their ``projections``. ``gate_up`` is both, one after the other. Norms have no weights."""
    hidden, inner = down[0].shape
    width = output[0].shape[1]
    query, key_value = (len(projections[0][0]), len(projections[1][0])) if projections else (0, 0)
    attributes = {
        "hidden": hidden,
        "attended": width,
        "intermediate": inner,
        "query": query,
        "key_value": key_value,
        "hidden_group": _group(hidden),
        "attended_group": _group(width),
        "intermediate_group": _group(inner),
        "epsilon": epsilon,
    }
    stream = residual.output(0) if isinstance(residual, Node) else residual
    inputs = [stream, attended.output(0), _constant(output, gate_up, down, *projections)]
    outputs: list[Output] = _factory().create(BLOCK, inputs, attributes).outputs()
    return outputs


def packed(values: npt.NDArray[np.int8], scales: npt.NDArray[np.floating], group: int) -> npt.NDArray[np.int8]:
    """A weight as the kernels read it, as bytes: values ``[blocks, in / 4, 16, 4]``, float32 scales ``[blocks * 16]``,
    and the int32 sum of each group's values ``[blocks, in / group, 16]``. Channels that fill the last block are 0."""
    channels, width = values.shape
    missing = -channels % _CHANNELS
    values = np.pad(values, ((0, missing), (0, 0)))
    blocks = values.reshape(-1, _CHANNELS, width // _INPUTS, _INPUTS).transpose(0, 2, 1, 3)
    sums = values.reshape(-1, _CHANNELS, width // group, group).sum(3, dtype=np.int32).transpose(0, 2, 1)
    padded = np.pad(scales.reshape(-1).astype(np.float32), (0, missing))
    parts = [np.ascontiguousarray(each).reshape(-1).view(np.int8) for each in (blocks, padded, sums)]
    return np.concatenate(parts)


def _constant(*weights: Quantised) -> Output:
    """Weights as the kernels read them, one after another: a node with few inputs is called faster."""
    parts = [packed(values, scales, _group(values.shape[1])) for values, scales in weights]
    constant: Output = op.constant(np.concatenate(parts)).output(0)
    return constant


def _group(width: int) -> int:
    group = group_of(width)
    assert group is not None, "the format was chosen for a model whose widths have a group"
    return group


@functools.cache
def _factory() -> NodeFactory:
    factory = NodeFactory()
    factory.add_extension(installed().path)
    return factory
