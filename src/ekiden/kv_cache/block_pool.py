"""Keeps account of the KV pool's blocks: free ones, referenced ones, and those that still hold a known prefix.

A block is in exactly one of three states:
- *referenced*: ``ref_count > 0``; so many block tables name it;
- *cached*: ``ref_count == 0``, but it has a key, so its content is a known prefix. It is evicted when a block is needed
  and none is free, least recently used first;
- *free*: ``ref_count == 0``, and it has no key.

Always free + cached + referenced = num_blocks. Only the KV cache manager uses this class, which knows no sequences.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile

from ekiden.state.invariants import Invariant, InvariantBreach, checking


class BlockPool:
    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._ref_count = [0] * num_blocks
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_available(self) -> int:
        """Blocks that :meth:`allocate` can give: free ones and evictable cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_referenced(self) -> int:
        return self.num_blocks - self.num_available

    def ref_count(self, block: int) -> int:
        return self._ref_count[block]

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks, with one reference each. Free blocks come first, then cached ones are evicted.

        Callers must check :attr:`num_available` first.
        """
        if count > self.num_available:
            what = f"{count} blocks asked for, {self.num_available} of {self.num_blocks} available"
            raise InvariantBreach(Invariant.BUDGET, what)
        blocks = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block, _ = self._cached.popitem(last=False)
                del self._block_of[self._key_of.pop(block)]
            self._ref_count[block] = 1
            blocks.append(block)
        return blocks

    def lookup(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks that hold the prefixes named by ``keys``, up to the first prefix that no block holds."""
        return [self._block_of[key] for key in takewhile(self._block_of.__contains__, keys)]

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of the blocks that :meth:`lookup` found."""
        for block in blocks:
            if self._ref_count[block] == 0:
                del self._cached[block]
            self._ref_count[block] += 1

    def set_key(self, block: int, key: bytes) -> None:
        """Give a referenced block the key of its content. If another block has that key already, nothing changes."""
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference to each block. Pass a table back to front, so that its last blocks are evicted first."""
        for block in blocks:
            count = self._ref_count[block] - 1
            if count < 0:
                raise InvariantBreach(Invariant.BLOCKS, f"block {block} was released more often than it was taken")
            self._ref_count[block] = count
            if count == 0:
                if block in self._key_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    @checking(Invariant.BLOCKS)
    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Assert that each block is in one state, and that its reference count is how many tables name it."""
        named = Counter(block for table in tables for block in table)
        free = set(self._free)
        assert len(free) == len(self._free), "a block is in the free list twice"
        assert not free & self._cached.keys(), "a block is free and cached"
        for block in range(self.num_blocks):
            count = self._ref_count[block]
            assert count == named[block], f"block {block}: ref_count {count}, named by {named[block]} tables"
            placed = (block in free) + (block in self._cached) + (count > 0)
            assert placed == 1, f"block {block} is in {placed} places"
            key = self._key_of.get(block)
            assert key is None or self._block_of.get(key) == block, f"block {block} lost its key"
            assert block not in free or key is None, f"free block {block} still has a key"
        assert len(self._block_of) == len(self._key_of), "a key names no block"
