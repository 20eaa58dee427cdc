"""Four-bit groups: whole numbers from 0 to 15 that share a scale and a zero point, made from weights.

Each group is tried with several ranges, some a little wider than its weights and some narrower. For each the weights
are rounded, and the scale is then fitted to them by least squares; the smallest sum of squared errors wins. Errors
count in proportion to the weight's size, as in ggml's ``make_qkx2_quants``: without that, clipping the largest weights
looks better than it is (docs/decisions/0026).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ekiden.backends.openvino.weights.format import FloatArray

LEVELS = 15
_SHARES = (1.0, 1.1, 1.06, 1.03, 0.97, 0.94, 0.9)
_AT_ONCE = 1 << 18
"""Weights that are searched together: few enough to stay in a processor's cache."""


class Groups(NamedTuple):
    """``(values - zeros) * scales`` approximates the weight.

    ``values`` is ``[out, in / group, group]``; ``zeros`` (from 0 to 15) and ``scales`` are ``[out, in / group, 1]``.
    """

    values: npt.NDArray[np.uint8]
    zeros: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float16]

    def weights(self) -> FloatArray:
        """``[out, in]``."""
        centred = self.values.astype(np.float32) - self.zeros.astype(np.float32)
        return (centred * self.scales.astype(np.float32)).reshape(len(self.values), -1)


def quantise_groups(weight: FloatArray, group: int) -> Groups:
    """Search the groups of a weight ``[out, in]``, whose width must be a multiple of ``group``."""
    rows = max(1, _AT_ONCE // weight.shape[1])
    found = [_search(weight[at : at + rows], group) for at in range(0, len(weight), rows)]
    return Groups(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _search(weight: FloatArray, group: int) -> Groups:
    x = weight.reshape(len(weight), -1, group)
    low = np.minimum(x.min(-1, keepdims=True), 0)
    high = np.maximum(x.max(-1, keepdims=True), 0)
    sizes = np.abs(x)
    best: Groups | None = None
    least = np.empty_like(low)
    for share in _SHARES:
        found = _fitted(x, sizes, low * share, high * share)
        centred = found.values - found.zeros.astype(np.float32)
        errors = (sizes * np.square(centred * found.scales.astype(np.float32) - x)).sum(-1, keepdims=True)
        if best is None:
            best, least = found, errors
            continue
        better = errors < least
        best = Groups(
            np.where(better, found.values, best.values),
            np.where(better, found.zeros, best.zeros),
            np.where(better, found.scales, best.scales),
        )
        least = np.where(better, errors, least)
    assert best is not None
    return best


def _fitted(x: FloatArray, sizes: FloatArray, low: FloatArray, high: FloatArray) -> Groups:
    """The groups for ranges ``[low, high]``, which hold 0; ``sizes`` are those of the weights."""
    steps = (high - low) / LEVELS
    steps[steps == 0] = 1
    zeros = np.rint(-low / steps)
    values = np.clip(np.rint(x / steps) + zeros, 0, LEVELS)
    centred = values - zeros
    squares = (sizes * np.square(centred)).sum(-1, keepdims=True)
    squares[squares == 0] = 1
    scales = np.abs((sizes * x * centred).sum(-1, keepdims=True) / squares).astype(np.float16)
    return Groups(values.astype(np.uint8), zeros.astype(np.uint8), scales)
