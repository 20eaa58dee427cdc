"""Gives sequences their KV blocks: block tables, prefix sharing, and the swap space.

The memory of one sequence, as half-open intervals of tokens, with who frees it:
- ``[0, num_cached_tokens)``: shared blocks found by prefix key, which are referenced here and freed with the table;
- ``[0, num_prompt_tokens)``: allocated at admission all at once, so that a prefill never runs out of blocks;
- ``[num_prompt_tokens, ...)``: allocated one block at a time, just before the step that needs it (formation);
- after the last token: blocks for the drafts of one step. Retirement gives back the blocks of rejected drafts.

A preempted sequence gives its blocks back and keeps their content in the swap space, in as many swap blocks. The pairs
that :meth:`swap_out` and :meth:`admit` return must reach the runner in the next plan. When the swap space is full, the
content is dropped, and the sequence is later computed again exactly as the first time: its prompt by prefill, its
output tokens one by one (docs/decisions/0002).
"""

from ekiden.kv_cache.block_pool import BlockPool
from ekiden.kv_cache.prefix_cache import prompt_keys, reusable_blocks
from ekiden.state.invariants import Invariant, checking
from ekiden.state.sequence import Sequence


class KVCacheManager:
    def __init__(
        self, *, num_blocks: int, block_size: int, num_swap_blocks: int, prefix_caching: bool, least_chunk: int = 2
    ) -> None:
        self.block_size = block_size
        self._least_chunk = least_chunk
        self.pool = BlockPool(num_blocks)
        self.num_swap_blocks = num_swap_blocks
        self.prefix_caching = prefix_caching
        self.prefix_queries = 0
        """Prompt tokens looked up in the prefix cache; ``prefix_hits`` counts those that were found."""
        self.prefix_hits = 0
        self._tables: dict[str, Sequence] = {}
        self._free_swap = list(range(num_swap_blocks - 1, -1, -1))
        self._swapped: dict[str, list[int]] = {}
        self._swap_in_flight: list[int] = []

    @property
    def max_tokens(self) -> int:
        """The length of the longest sequence that fits the pool."""
        return self.pool.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def blocks_to_admit(self, sequence: Sequence) -> int:
        """The available blocks that :meth:`admit` would take: those of all tokens, less those that others reference."""
        shared = sum(self.pool.ref_count(block) > 0 for block in self._shared_prefix(sequence))
        return self.blocks_for(len(sequence.token_ids)) - shared

    def admit(self, sequence: Sequence) -> list[tuple[int, int]]:
        """Give a waiting or preempted sequence its blocks. Returns the swap-in pairs.

        The caller must have checked that :meth:`blocks_to_admit` blocks are available.
        """
        self._tables[sequence.request_id] = sequence
        if sequence.swapped_blocks:
            return self._swap_in(sequence)
        shared = self._shared_prefix(sequence)
        self.pool.share(shared)
        missing = self.blocks_for(len(sequence.token_ids)) - len(shared)
        sequence.block_table = (*shared, *self.pool.allocate(missing))
        sequence.num_computed_tokens = len(shared) * self.block_size
        # Only the first admission counts: a preempted sequence may find blocks of its own prompt.
        if self.prefix_caching and sequence.num_preemptions == 0 and not sequence.admission:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self.prefix_queries += sequence.num_prompt_tokens
            self.prefix_hits += sequence.num_cached_tokens
        return []

    def num_cached(self, sequence: Sequence) -> int:
        """How many tokens of its prompt an admission now would find in the pool."""
        return len(self._shared_prefix(sequence)) * self.block_size

    def key_after(self, sequence: Sequence, computed: int) -> bytes | None:
        """The key of the block of its prompt that follows ``computed`` tokens; None where no other sequence can compute
        it. Of two that have the same one to compute, the second takes over what the first computes."""
        first = computed // self.block_size
        shareable = self.prefix_caching and first < self._reusable_blocks(sequence)
        return prompt_keys(sequence, self.block_size)[first] if shareable else None

    def _shared_prefix(self, sequence: Sequence) -> list[int]:
        """The blocks in the pool that already hold the start of this sequence's prompt."""
        if not self.prefix_caching or sequence.swapped_blocks:
            return []
        return self.pool.lookup(prompt_keys(sequence, self.block_size)[: self._reusable_blocks(sequence)])

    def _reusable_blocks(self, sequence: Sequence) -> int:
        """How many leading blocks it may share: those before the first position that it must compute itself."""
        reusable = reusable_blocks(sequence.num_prompt_tokens, self.block_size, self._least_chunk)
        return min(reusable, sequence.request.first_needed // self.block_size)

    def note_computed(self, sequence: Sequence, start: int, end: int) -> None:
        """Prefill has written ``[start, end)``: give the full prompt blocks among it their keys."""
        if not self.prefix_caching:
            return
        keys = prompt_keys(sequence, self.block_size)
        for index in range(start // self.block_size, min(end // self.block_size, len(keys))):
            self.pool.set_key(sequence.block_table[index], keys[index])

    def keys_to_compute(self, sequence: Sequence, count: int) -> list[bytes]:
        """The keys of the shareable blocks that the sequence's next ``count`` prefill tokens would fill."""
        if not self.prefix_caching:
            return []
        first = sequence.num_computed_tokens // self.block_size
        last = min(first + self.blocks_for(count), self._reusable_blocks(sequence))
        return prompt_keys(sequence, self.block_size)[first:last]

    def take_over_computed(self, sequence: Sequence) -> int:
        """Use the prompt blocks that others have computed since this sequence was admitted; returns the tokens gained.

        Requests with the same long beginning often arrive together, before any of their blocks has a key.
        """
        left = sequence.num_prompt_tokens - sequence.num_computed_tokens
        found = self.pool.lookup(self.keys_to_compute(sequence, left))
        if not found:
            return 0
        first, table = sequence.num_computed_tokens // self.block_size, sequence.block_table
        after = first + len(found)
        self.pool.share(found)
        self.pool.release(table[first:after])
        sequence.block_table = (*table[:first], *found, *table[after:])
        gained = len(found) * self.block_size
        sequence.num_computed_tokens += gained
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens += gained
            self.prefix_hits += gained
        return gained

    def needs_block(self, sequence: Sequence) -> bool:
        """Whether the sequence's next token needs a block beyond its table."""
        return sequence.num_computed_tokens >= len(sequence.block_table) * self.block_size

    def grow(self, sequence: Sequence) -> None:
        """Add a block for the next token; the caller must have checked that one is available."""
        sequence.block_table += tuple(self.pool.allocate(1))

    def grow_for_drafts(self, sequence: Sequence, count: int) -> int:
        """Add blocks for drafts after the next token, as far as available; returns how many drafts fit."""
        end = sequence.num_computed_tokens + 1
        missing = self.blocks_for(end + count) - len(sequence.block_table)
        if missing > 0:
            sequence.block_table += tuple(self.pool.allocate(min(missing, self.pool.num_available)))
        return min(count, len(sequence.block_table) * self.block_size - end)

    def trim(self, sequence: Sequence, num_tokens: int) -> None:
        """Give back the blocks after the sequence's first ``num_tokens`` tokens.

        Those of unused or rejected drafts never have a key, since only blocks that prefill wrote get one.
        """
        kept = self.blocks_for(num_tokens)
        self.pool.release(reversed(sequence.block_table[kept:]))
        sequence.block_table = sequence.block_table[:kept]

    def release(self, sequence: Sequence) -> None:
        """Give back all blocks of a sequence, in the pool and in the swap space."""
        self.trim(sequence, 0)
        self._free_swap += self._swapped.pop(sequence.request_id, [])
        sequence.swapped_blocks = 0
        self._tables.pop(sequence.request_id, None)

    def swap_out(self, sequence: Sequence) -> list[tuple[int, int]]:
        """Take a running sequence's blocks away. Their content goes to the swap space if that has room.

        Returns the pairs ``(pool block, swap block)`` to copy; none when the content is dropped and computed again.
        """
        used = self.blocks_for(sequence.num_computed_tokens)
        pairs: list[tuple[int, int]] = []
        if 0 < used <= len(self._free_swap):
            targets = [self._free_swap.pop() for _ in range(used)]
            pairs = list(zip(sequence.block_table, targets, strict=False))
            self._swapped[sequence.request_id] = targets
            sequence.swapped_blocks = used
        else:
            sequence.num_computed_tokens = 0
        self.trim(sequence, 0)
        del self._tables[sequence.request_id]
        return pairs

    def _swap_in(self, sequence: Sequence) -> list[tuple[int, int]]:
        sources = self._swapped.pop(sequence.request_id)
        sequence.block_table = tuple(self.pool.allocate(self.blocks_for(len(sequence.token_ids))))
        sequence.swapped_blocks = 0
        # A swap-out of the same plan runs first; it must not get the swap blocks that this swap-in reads.
        self._swap_in_flight += sources
        return list(zip(sources, sequence.block_table, strict=False))

    def plan_executed(self) -> None:
        """Free the swap blocks of all swap-ins so far, which the runner has now applied."""
        self._free_swap += self._swap_in_flight
        self._swap_in_flight.clear()

    @checking(Invariant.BLOCKS)
    def check_integrity(self) -> None:
        """Assert the pool's integrity, that tables cover what is computed, and that each swap block is in one place."""
        self.pool.check_integrity(sequence.block_table for sequence in self._tables.values())
        for sequence in self._tables.values():
            held = len(sequence.block_table) * self.block_size
            assert sequence.num_computed_tokens <= held, f"{sequence!r} computed past its blocks"
        swap = self._free_swap + self._swap_in_flight + [block for used in self._swapped.values() for block in used]
        assert sorted(swap) == list(range(self.num_swap_blocks)), "a swap block is lost or in two places"
