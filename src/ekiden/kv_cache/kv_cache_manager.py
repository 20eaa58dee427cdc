"""Who holds which KV blocks: the block tables of sequences, prefix sharing, and the swap space.

Memory of one sequence, as half-open token intervals and who frees each:
- ``[0, num_cached_tokens)``: shared blocks found by prefix key; referenced here, freed with the table;
- ``[0, num_prompt_tokens)``: allocated whole at admission, so a prefill never runs out half-way;
- ``[num_prompt_tokens, ...)``: one block at a time, just before the step that needs it (formation).

A preempted sequence gives its blocks back and keeps their content in the swap space, one swap block for each. Pairs
handed out by :meth:`swap_out` and :meth:`swap_in` must reach the runner in the next plan. When the swap space is full
the content is dropped instead, and the sequence is computed again exactly as it was the first time: prompt by
prefill, output tokens one by one (docs/decisions).
"""

from ekiden.kv_cache.block_pool import BlockPool
from ekiden.kv_cache.prefix_cache import prompt_keys, reusable_blocks
from ekiden.state.invariants import Invariant, checking
from ekiden.state.sequence import Sequence


class KVCacheManager:
    def __init__(self, *, num_blocks: int, block_size: int, num_swap_blocks: int, prefix_caching: bool) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.num_swap_blocks = num_swap_blocks
        self.prefix_caching = prefix_caching
        self.prefix_queries = 0
        """Prompt tokens looked up in the prefix cache, and how many of them were found (``prefix_hits``)."""
        self.prefix_hits = 0
        self._tables: dict[str, Sequence] = {}
        self._free_swap = list(range(num_swap_blocks - 1, -1, -1))
        self._swapped: dict[str, list[int]] = {}
        self._swap_in_flight: list[int] = []

    @property
    def num_available(self) -> int:
        return self.pool.num_available

    @property
    def max_tokens(self) -> int:
        """The longest sequence that fits the pool alone."""
        return self.pool.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def blocks_to_admit(self, sequence: Sequence) -> int:
        """Available blocks that :meth:`admit` would use up: all its tokens' blocks, less those others hold already."""
        shared = sum(self.pool.ref_count(block) > 0 for block in self._shared_prefix(sequence))
        return self.blocks_for(len(sequence.token_ids)) - shared

    def admit(self, sequence: Sequence) -> list[tuple[int, int]]:
        """Give a waiting or preempted sequence its blocks. Returns the swap-in pairs.

        The caller has made sure that :meth:`blocks_to_admit` are available.
        """
        self._tables[sequence.request_id] = sequence
        if sequence.swapped_blocks:
            return self._swap_in(sequence)
        shared = self._shared_prefix(sequence)
        for block in shared:
            self.pool.share(block)
        sequence.block_table = shared + self.pool.allocate(self.blocks_for(len(sequence.token_ids)) - len(shared))
        sequence.num_computed_tokens = len(shared) * self.block_size
        # Once a request: what it finds of its own prompt when it comes back is no hit.
        if self.prefix_caching and sequence.num_preemptions == 0 and not sequence.admission:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self.prefix_queries += sequence.num_prompt_tokens
            self.prefix_hits += sequence.num_cached_tokens
        return []

    def _shared_prefix(self, sequence: Sequence) -> list[int]:
        """The blocks in the pool that already hold the start of this sequence's prompt."""
        if not self._takes_shared(sequence) or sequence.swapped_blocks:
            return []
        shared: list[int] = []
        for key in prompt_keys(sequence, self.block_size)[
            : reusable_blocks(sequence.num_prompt_tokens, self.block_size)
        ]:
            block = self.pool.lookup(key)
            if block is None:
                break
            shared.append(block)
        return shared

    def _takes_shared(self, sequence: Sequence) -> bool:
        """A sequence whose prompt's own log-probabilities were asked for must compute it itself."""
        return self.prefix_caching and sequence.request.sampling.prompt_logprobs is None

    def note_computed(self, sequence: Sequence, start: int, end: int) -> None:
        """Prefill has written tokens ``[start, end)``: name the full prompt blocks among them, for others to share."""
        if not self.prefix_caching:
            return
        keys = prompt_keys(sequence, self.block_size)
        for index in range(start // self.block_size, min(end // self.block_size, len(keys))):
            self.pool.set_key(sequence.block_table[index], keys[index])

    def keys_to_compute(self, sequence: Sequence, count: int) -> list[bytes]:
        """The keys of the blocks that its next ``count`` prefill tokens would fill and others could share."""
        if not self._takes_shared(sequence):
            return []
        first = sequence.num_computed_tokens // self.block_size
        last = min(-(-count // self.block_size) + first, reusable_blocks(sequence.num_prompt_tokens, self.block_size))
        return prompt_keys(sequence, self.block_size)[first:last]

    def take_over_computed(self, sequence: Sequence) -> int:
        """Use the prompt blocks that others have computed since this sequence was admitted; returns tokens gained.

        Requests with one long beginning often arrive together, before any of them is in the cache.
        """
        gained = 0
        size = self.block_size
        for key in self.keys_to_compute(sequence, sequence.num_prompt_tokens - sequence.num_computed_tokens):
            block = self.pool.lookup(key)
            if block is None:
                break
            index = (sequence.num_computed_tokens + gained) // size
            self.pool.share(block)
            self.pool.release([sequence.block_table[index]])
            sequence.block_table[index] = block
            gained += size
        sequence.num_computed_tokens += gained
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens += gained
            self.prefix_hits += gained
        return gained

    def needs_block(self, sequence: Sequence) -> bool:
        """True when the sequence's next token falls outside its block table."""
        return sequence.num_computed_tokens >= len(sequence.block_table) * self.block_size

    def grow(self, sequence: Sequence) -> None:
        """One more block for the next token; the caller has made sure that one is available."""
        sequence.block_table += self.pool.allocate(1)

    def release(self, sequence: Sequence) -> None:
        """Give back all that a sequence holds, in the pool and in the swap space."""
        self.pool.release(reversed(sequence.block_table))
        sequence.block_table = []
        self._free_swap += self._swapped.pop(sequence.request_id, [])
        sequence.swapped_blocks = 0
        self._tables.pop(sequence.request_id, None)

    def swap_out(self, sequence: Sequence) -> list[tuple[int, int]]:
        """Take a running sequence's blocks away, keeping their content if the swap space has room.

        Returns pairs ``(pool block, swap block)``; none when the content was dropped to be computed again.
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
        self.pool.release(reversed(sequence.block_table))
        sequence.block_table = []
        del self._tables[sequence.request_id]
        return pairs

    def _swap_in(self, sequence: Sequence) -> list[tuple[int, int]]:
        sources = self._swapped.pop(sequence.request_id)
        sequence.block_table = self.pool.allocate(self.blocks_for(len(sequence.token_ids)))
        sequence.swapped_blocks = 0
        # A swap-out of the same plan runs first and must not overwrite what this swap-in will read.
        self._swap_in_flight += sources
        return list(zip(sources, sequence.block_table, strict=False))

    def plan_executed(self) -> None:
        """The runner has applied the swaps handed out so far; their swap blocks may be used again."""
        self._free_swap += self._swap_in_flight
        self._swap_in_flight.clear()

    @checking(Invariant.BLOCKS)
    def check_integrity(self) -> None:
        """Assert the pool's partition, that tables are long enough, and that swap blocks are each in one place."""
        self.pool.check_integrity(sequence.block_table for sequence in self._tables.values())
        for sequence in self._tables.values():
            held = len(sequence.block_table) * self.block_size
            assert sequence.num_computed_tokens <= held, f"{sequence!r} computed past its blocks"
        swap = self._free_swap + self._swap_in_flight + [block for used in self._swapped.values() for block in used]
        assert sorted(swap) == list(range(self.num_swap_blocks)), "a swap block is lost or in two places"
