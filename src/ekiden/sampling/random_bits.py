"""A counter-based random generator: the draws for a token depend only on the request's seed and the token's position.

It is Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), computed
for all rows at once. It has no state, so a draw cannot depend on other rows, on their order or on earlier draws.
"""

import numpy as np
import numpy.typing as npt

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_ROUNDS = 10

Words = npt.NDArray[np.uint64]

DRAWS_PER_BLOCK = 2


def philox4x32(counter: Words, key: Words) -> Words:
    """Four 32-bit words a row. ``counter`` is ``[4, rows]``, ``key`` ``[2, rows]``; each entry is below 2**32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0 = c0 * _MULTIPLIERS[0]
        p1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> _SHIFT) ^ c1 ^ k0, p1 & _LOW, (p0 >> _SHIFT) ^ c3 ^ k1, p0 & _LOW
        k0 = (k0 + _KEY_STEPS[0]) & _LOW
        k1 = (k1 + _KEY_STEPS[1]) & _LOW
    return np.stack([c0, c1, c2, c3])


def uniforms(seeds: list[int], positions: list[int], block: int = 0) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) of 53 random bits, ``[DRAWS_PER_BLOCK, rows]``: block ``block`` of each (seed, position).

    Seeds are taken modulo 2**64; positions and blocks are not negative.
    """
    seed = np.array([value & (2**64 - 1) for value in seeds], np.uint64)
    position = np.array(positions, np.uint64)
    counter = np.zeros((4, len(seeds)), np.uint64)
    counter[0], counter[1], counter[2] = position & _LOW, position >> _SHIFT, block
    words = philox4x32(counter, np.stack([seed & _LOW, seed >> _SHIFT]))
    bits = (words[0::2] << _SHIFT | words[1::2]) >> np.uint64(11)
    return np.asarray(bits, np.float64) * 2.0**-53
