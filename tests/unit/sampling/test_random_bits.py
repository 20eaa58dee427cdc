"""The generator against its authors' test vectors, and what it is keyed by."""

import numpy as np
import pytest

from ekiden.sampling.random_bits import philox4x32, uniforms

# Random123, kat_vectors, "philox4x32 10": counter, key, result
KNOWN_ANSWERS = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, expected):
    words = philox4x32(np.array(counter, np.uint64)[:, None], np.array(key, np.uint64)[:, None])
    assert words[:, 0].tolist() == expected


def test_rows_are_computed_as_if_alone():
    counters = np.array([answer[0] for answer in KNOWN_ANSWERS], np.uint64).T
    keys = np.array([answer[1] for answer in KNOWN_ANSWERS], np.uint64).T
    assert philox4x32(counters, keys).T.tolist() == [answer[2] for answer in KNOWN_ANSWERS]


def test_draws_differ_by_seed_position_and_block_and_by_nothing_else():
    seeds, positions = [0, 0, 1, -1, 2**64 - 1], [5, 6, 5, 5, 5]
    draws = uniforms(seeds, positions)
    assert len({*draws[:, :4].ravel().tolist()}) == 8
    assert draws[:, 3].tolist() == draws[:, 4].tolist(), "seeds count modulo 2**64"
    assert draws[:, 1].tolist() == uniforms([0], [6])[:, 0].tolist()
    assert not np.intersect1d(draws[:, :4], uniforms(seeds[:4], positions[:4], block=1)).size


def test_draws_are_uniform_over_positions_and_over_seeds():
    for draws in (uniforms([3] * 20_000, list(range(20_000))), uniforms(list(range(20_000)), [3] * 20_000)):
        assert (draws >= 0).all()
        assert (draws < 1).all()
        counts = np.histogram(draws, bins=50, range=(0, 1))[0]
        expected = draws.size / 50
        assert ((counts - expected) ** 2 / expected).sum() < 100  # 49 degrees of freedom: beyond 1 in 20,000
