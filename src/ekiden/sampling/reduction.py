"""Summarises a row of logits for sampling, and the type of the functions by which a backend may do so faster.

A row of ``V`` logits is divided into ``ceil(V / GROUP_SIZE)`` groups. The maxima of the groups tell where the likely
tokens are, and the groups' sums of exponentials add up to the row's total mass. Both arrays are small, so the code
after them reads few numbers.

Rule: a row's results must not depend, in any bit, on the other rows of the call.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatMatrix = npt.NDArray[np.float32]
FloatRow = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

GROUP_SIZE = 128


class Reduced(NamedTuple):
    """``maxima[r, g]`` is the highest logit of group ``g``; ``sums[r, g]`` the sum over the group of
    ``exp((logit - row maximum) * inverse temperature)``."""

    maxima: FloatMatrix
    sums: FloatMatrix


Reducer = Callable[[FloatMatrix, FloatRow], Reduced]
"""Reduces logits with ``1 / temperature`` for each row.

The logits are C-contiguous, ``[rows, padded vocabulary]``, a multiple of :data:`GROUP_SIZE` wide, and are only read.
The result is valid until the next call.
"""


def numpy_reduce(logits: FloatMatrix, inverse_temperatures: FloatRow) -> Reduced:
    """The reference :data:`Reducer`, for backends that have none of their own."""
    groups = logits.reshape(len(logits), -1, GROUP_SIZE)
    maxima = groups.max(axis=2)
    top = maxima.max(axis=1)
    weights = (groups - top[:, None, None]) * inverse_temperatures[:, None, None]
    return Reduced(maxima, np.exp(weights, out=weights).sum(axis=2))


def pad_vocabulary(logits: FloatMatrix) -> FloatMatrix:
    """``logits`` itself if its width is a multiple of the group size, otherwise a copy filled up with -inf."""
    rows, width = logits.shape
    missing = -width % GROUP_SIZE
    if missing == 0 and logits.flags.c_contiguous:
        return logits
    padded = np.full((rows, width + missing), -np.inf, np.float32)
    padded[:, :width] = logits
    return padded
