"""Summarises a row of logits for sampling, and the port through which a backend may do so faster.

A row of ``V`` logits is divided into ``ceil(V / GROUP_SIZE)`` groups. The maxima of the groups tell where the likely
tokens are, and the groups' sums of exponentials add up to the row's total mass. Both arrays are small, so the code
after them reads few numbers.

Rule: a row's results must not depend, in any bit, on the other rows of the call.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

FloatMatrix = npt.NDArray[np.float32]
FloatRow = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

GROUP_SIZE = 128


@dataclass(frozen=True, slots=True)
class Reduced:
    """``maxima[r, g]`` is the highest logit of group ``g``; ``sums[r, g]`` the sum over the group of
    ``exp((logit - row maximum) * inverse temperature)``."""

    maxima: FloatMatrix
    sums: FloatMatrix


class Reducer(Protocol):
    def reduce(self, logits: FloatMatrix, inverse_temperatures: npt.NDArray[np.float32]) -> Reduced:
        """Reduce ``logits`` with ``1 / temperature`` for each row.

        ``logits`` is C-contiguous, ``[rows, padded vocabulary]``, a multiple of :data:`GROUP_SIZE` wide, and is only
        read. The result is valid until the next call.
        """
        ...


class NumpyReducer:
    """The reference, for backends that have no reducer of their own."""

    def reduce(self, logits: FloatMatrix, inverse_temperatures: npt.NDArray[np.float32]) -> Reduced:
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
