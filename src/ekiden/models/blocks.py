"""Weights of up to four bits as a file stores them: whole numbers in groups, each group with a scale and a minimum.

A weight is ``value * scale + minimum``, computed in float32. The layouts are those of ggml's ``Q4_0``, ``Q4_1`` and
``Q4_K`` (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h); what comes out here has the same bits as what
the ``gguf`` package dequantises.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

GROUP = 32
"""Weights in a group of each of these types."""

_Bytes = npt.NDArray[np.uint8]


class Blocks(NamedTuple):
    """A matrix ``[out, in]`` of values from 0 to 15.

    ``values`` is ``[out, in / group, group]``, ``scales`` and ``minimums`` are ``[out, in / group, 1]`` float32.
    """

    values: _Bytes
    scales: npt.NDArray[np.float32]
    minimums: npt.NDArray[np.float32]

    def weights(self) -> npt.NDArray[np.float32]:
        """``[out, in]``."""
        products = self.values.astype(np.float32) * self.scales + self.minimums
        return products.reshape(len(self.values), -1)


@runtime_checkable
class StoresBlocks(Protocol):
    """A checkpoint whose file may hold matrices of four bits."""

    def blocks(self, name: str) -> Blocks | None:
        """The tensor ``name`` as it is stored; None where it is stored with other than four bits."""
        ...


def q4_0(rows: _Bytes) -> Blocks:
    """From the bytes ``[out, row bytes]``: a float16 scale and 32 values, of which 8 stands for zero."""
    blocks = rows.reshape(len(rows), -1, 18)
    scales = _halves(blocks[..., :2])
    return Blocks(_nibbles(blocks[..., 2:]), scales, -8 * scales)


def q4_1(rows: _Bytes) -> Blocks:
    """From the bytes ``[out, row bytes]``: a float16 scale, a float16 minimum and 32 values."""
    blocks = rows.reshape(len(rows), -1, 20)
    return Blocks(_nibbles(blocks[..., 4:]), _halves(blocks[..., :2]), _halves(blocks[..., 2:4]))


def q4_k(rows: _Bytes) -> Blocks:
    """From the bytes ``[out, row bytes]``: in blocks of 256, eight groups whose scales and minimums have six bits."""
    blocks = rows.reshape(len(rows), -1, 144)
    packed = blocks[..., 4:16].reshape(*blocks.shape[:2], 3, 4)
    low, middle, high = packed[..., 0, :], packed[..., 1, :], packed[..., 2, :]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], -1)
    minimums = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], -1)
    # Each run of 32 bytes holds two groups, the first in the lower halves.
    values = _nibbles(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))
    return Blocks(
        values.reshape(len(rows), -1, GROUP),
        (_halves(blocks[..., :2]) * scales).reshape(len(rows), -1, 1),
        (-_halves(blocks[..., 2:4]) * minimums).reshape(len(rows), -1, 1),
    )


READERS = {"Q4_0": q4_0, "Q4_1": q4_1, "Q4_K": q4_k}
"""By the names of ggml's types."""


def _halves(content: _Bytes) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(content).view("<f2").astype(np.float32)


def _nibbles(content: _Bytes) -> _Bytes:
    """All lower halves of each run of bytes, then all upper halves."""
    return np.concatenate([content & 15, content >> 4], -1)
