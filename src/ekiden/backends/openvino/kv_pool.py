"""The memory of keys and values: the pool that the kernels use, and the swap space.

Rules:
- the pool is allocated once, as tensors that stay bound to the model. Block ids run from 0 to ``num_blocks - 1``; one
  more block, ``scratch_block``, belongs to the runner, whose padding rows write to it;
- types and shapes come from the compiled model, never from an assumption about the kernel's layout;
- a block moves between pool and swap space as the raw bytes of every layer, so its content does not change.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import openvino as ov

from ekiden.config import ConfigError

Layers = list[npt.NDArray[np.uint8]]
"""The bytes of blocks, ``[blocks, bytes]`` for each cache input of the model."""

BLOCK_SIZE = 32
"""Tokens in a block, as the CPU kernel has it."""

FEWEST_BLOCKS = 8
"""The self-test needs this many; a pool for real use has far more."""


@dataclass(frozen=True, slots=True)
class KVLayout:
    """One cache input of the compiled model: ``block_shape`` is the shape without the leading block axis."""

    name: str
    element_type: ov.Type
    block_shape: tuple[int, ...]

    @property
    def bytes_per_block(self) -> int:
        return int(np.prod(self.block_shape)) * int(self.element_type.size)


def read_layouts(compiled: ov.CompiledModel) -> list[KVLayout]:
    """The model's cache inputs, in their order."""
    ports = [port for port in compiled.inputs if port.any_name.startswith(("key_cache.", "value_cache."))]
    shapes = [tuple(axis.get_length() for axis in list(port.get_partial_shape())[1:]) for port in ports]
    return [KVLayout(port.any_name, port.get_element_type(), shape) for port, shape in zip(ports, shapes, strict=True)]


@dataclass(slots=True)
class KVPool:
    """The pool and the swap space of one runner."""

    num_blocks: int
    num_swap_blocks: int
    bytes_per_block: int
    tensors: dict[str, ov.Tensor]
    _pool: Layers = field(repr=False)
    _swap: Layers = field(repr=False)

    @property
    def scratch_block(self) -> int:
        return self.num_blocks

    def swap_out(self, pairs: list[tuple[int, int]]) -> None:
        """Copy pool blocks to swap blocks; each pair is (pool block, swap block)."""
        _copy_blocks(self._pool, self._swap, pairs)

    def swap_in(self, pairs: list[tuple[int, int]]) -> None:
        """Copy swap blocks to pool blocks; each pair is (swap block, pool block)."""
        _copy_blocks(self._swap, self._pool, pairs)

    def snapshot(self, blocks: list[int]) -> Layers:
        """A copy of the given pool blocks, for :meth:`restore`."""
        return [layer[blocks] for layer in self._pool]

    def restore(self, blocks: list[int], saved: Layers) -> None:
        """Write back what :meth:`snapshot` of the same blocks saved."""
        for layer, content in zip(self._pool, saved, strict=True):
            layer[blocks] = content


def allocate(layouts: list[KVLayout], *, kv_cache_bytes: int, swap_bytes: int) -> KVPool:
    """A pool and swap space of at most the given sizes.

    No page is touched here: the system provides memory when a block is first written. Raises :class:`ConfigError` when
    the pool would have too few blocks or the system refuses the memory.
    """
    bytes_per_block = sum(layout.bytes_per_block for layout in layouts)
    num_blocks = kv_cache_bytes // bytes_per_block
    if num_blocks < FEWEST_BLOCKS:
        raise ConfigError(
            f"kv_cache_size is {kv_cache_bytes} bytes; this model needs {bytes_per_block} bytes for {BLOCK_SIZE} "
            f"tokens: give at least {FEWEST_BLOCKS * bytes_per_block} bytes"
        )
    num_swap_blocks = swap_bytes // bytes_per_block
    try:
        tensors = {
            layout.name: ov.Tensor(layout.element_type, ov.Shape([num_blocks + 1, *layout.block_shape]))
            for layout in layouts
        }
        swap = [np.empty((num_swap_blocks, layout.bytes_per_block), np.uint8) for layout in layouts]
    except (MemoryError, RuntimeError) as error:
        raise ConfigError(
            f"the system refuses memory for kv_cache_size {kv_cache_bytes} and swap_size {swap_bytes} bytes; lower them"
        ) from error
    pool = [tensor.data.view(np.uint8).reshape(num_blocks + 1, -1) for tensor in tensors.values()]
    return KVPool(num_blocks, num_swap_blocks, bytes_per_block, tensors, pool, swap)


def _copy_blocks(source: Layers, target: Layers, pairs: list[tuple[int, int]]) -> None:
    if not pairs:
        return
    from_blocks, to_blocks = map(list, zip(*pairs, strict=True))
    for source_layer, target_layer in zip(source, target, strict=True):
        target_layer[to_blocks] = source_layer[from_blocks]
