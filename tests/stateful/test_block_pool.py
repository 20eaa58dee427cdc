"""The block pool against a model that knows nothing of lists and queues: only who references what."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ekiden.kv_cache.block_pool import BlockPool
from ekiden.state.invariants import Invariant, InvariantBreach

NUM_BLOCKS = 7
KEYS = st.sampled_from([b"a", b"b", b"c"])
"""Few, so that a key that is looked up has often been given to a block."""


class BlockPoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.tables: list[list[int]] = []
        self.key_of: dict[int, bytes] = {}
        """The model: which key each block's content has, as long as the block was not given to somebody else."""

    def referenced(self) -> set[int]:
        return {block for table in self.tables for block in table}

    @rule(count=st.integers(0, NUM_BLOCKS + 1))
    def allocate(self, count: int) -> None:
        available = NUM_BLOCKS - len(self.referenced())
        assert self.pool.num_available == available
        if count > available:
            with pytest.raises(InvariantBreach) as breach:
                self.pool.allocate(count)
            assert breach.value.invariant is Invariant.BUDGET
            return
        blocks = self.pool.allocate(count)
        assert len(set(blocks)) == count
        assert not set(blocks) & self.referenced(), "a referenced block was given out again"
        for block in blocks:
            self.key_of.pop(block, None)
        self.tables.append(blocks)

    @precondition(lambda self: self.referenced())
    @rule(data=st.data(), key=KEYS)
    def set_key(self, data: st.DataObject, key: bytes) -> None:
        block = data.draw(st.sampled_from(sorted(self.referenced())))
        self.pool.set_key(block, key)
        if block not in self.key_of and key not in self.key_of.values():
            self.key_of[block] = key

    @rule(key=KEYS)
    def share(self, key: bytes) -> None:
        found = self.pool.lookup([key])
        assert found == [block for block, known in self.key_of.items() if known == key]
        if found:
            self.pool.share(found)
            self.tables.append(found)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        self.pool.release(reversed(self.tables.pop(index)))

    @invariant()
    def integrity(self) -> None:
        self.pool.check_integrity(self.tables)


BlockPoolMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestBlockPool = BlockPoolMachine.TestCase


def test_least_recently_released_prefix_is_evicted_first() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block, key in zip(blocks, (b"a", b"b", b"c"), strict=True):
        pool.set_key(block, key)
    pool.release([blocks[1]])
    pool.release([blocks[0], blocks[2]])
    pool.allocate(1)
    assert [pool.lookup([key]) for key in (b"a", b"b", b"c")] == [[blocks[0]], [], [blocks[2]]]
    assert pool.lookup([b"a", b"b", b"c"]) == [blocks[0]], "nothing is known after the first prefix that is not"
