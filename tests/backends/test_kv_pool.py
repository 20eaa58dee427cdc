"""Sizes of the pool and exact copies between it and the swap space."""

import numpy as np
import openvino as ov
import pytest

from ekiden.backends.openvino.kv_pool import FEWEST_BLOCKS, KVLayout, allocate
from ekiden.config import ConfigError

LAYOUTS = [KVLayout("key_cache.0", ov.Type.f16, (3, 32, 64)), KVLayout("value_cache.0", ov.Type.u8, (3, 32, 72))]
BYTES = 3 * 32 * 64 * 2 + 3 * 32 * 72


def test_a_pool_fills_its_size_and_has_one_scratch_block_more():
    pool = allocate(LAYOUTS, kv_cache_bytes=20 * BYTES + 5, swap_bytes=3 * BYTES)
    assert (pool.num_blocks, pool.num_swap_blocks, pool.bytes_per_block) == (20, 3, BYTES)
    assert pool.scratch_block == 20
    assert [tensor.shape[0] for tensor in pool.tensors.values()] == [21, 21]


def test_a_block_comes_back_from_the_swap_space_bit_for_bit():
    pool = allocate(LAYOUTS, kv_cache_bytes=20 * BYTES, swap_bytes=4 * BYTES)
    generator = np.random.default_rng(0)
    views = [tensor.data.view(np.uint8).reshape(21, -1) for tensor in pool.tensors.values()]
    for view in views:
        view[:] = generator.integers(0, 256, view.shape, dtype=np.uint8)  # NaN patterns of f16 included
    before = [view.copy() for view in views]
    pool.swap_out([(5, 3), (6, 0), (19, 1)])
    for view in views:
        view[[5, 6, 19]] = 0
    pool.swap_in([(0, 6), (3, 12), (1, 5)])
    for view, old in zip(views, before, strict=True):
        assert (view[6] == old[6]).all()
        assert (view[12] == old[5]).all()
        assert (view[5] == old[19]).all()
        untouched = [block for block in range(21) if block not in (5, 6, 12, 19)]
        assert (view[untouched] == old[untouched]).all()


def test_blocks_can_be_put_back_as_they_were():
    pool = allocate(LAYOUTS, kv_cache_bytes=20 * BYTES, swap_bytes=0)
    views = [tensor.data.view(np.uint8).reshape(21, -1) for tensor in pool.tensors.values()]
    for view in views:
        view[:] = 3
    saved = pool.snapshot([4, 7])
    for view in views:
        view[:] = 9
    pool.restore([4, 7], saved)
    assert all((view[[4, 7]] == 3).all() and (view[5] == 9).all() for view in views)


def test_a_pool_too_small_for_any_use_is_refused_with_the_least_that_works():
    with pytest.raises(ConfigError, match=f"at least {FEWEST_BLOCKS * BYTES} bytes"):
        allocate(LAYOUTS, kv_cache_bytes=FEWEST_BLOCKS * BYTES - 1, swap_bytes=0)


def test_memory_that_the_system_refuses_is_named():
    with pytest.raises(ConfigError, match="refuses memory for kv_cache_size"):
        allocate(LAYOUTS, kv_cache_bytes=2**60, swap_bytes=0)
