"""Keys of prompt prefixes: a hash chain over full blocks of token ids.

Key ``i`` covers the tokens ``[0, (i + 1) * block_size)``, so equal keys mean equal prefixes (blake2b, 16 bytes). Only
blocks that prefill wrote get a key: decode attention rounds differently, and a hit must not change the output.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from ekiden.state import sequence as state


def prefix_keys(token_ids: Sequence[int], block_size: int, count: int) -> list[bytes]:
    """The keys of the first ``count`` full blocks."""
    keys: list[bytes] = []
    parent = b""
    for start in range(0, count * block_size, block_size):
        digest = blake2b(parent, digest_size=16)
        digest.update(array("q", token_ids[start : start + block_size]).tobytes())
        parent = digest.digest()
        keys.append(parent)
    return keys


def prompt_keys(sequence: "state.Sequence", block_size: int) -> list[bytes]:
    """The keys of a sequence's full prompt blocks, computed once and then kept in it."""
    if sequence.prefix_keys is None:
        count = sequence.num_prompt_tokens // block_size
        sequence.prefix_keys = prefix_keys(sequence.token_ids, block_size, count)
    return sequence.prefix_keys


def reusable_blocks(num_prompt_tokens: int, block_size: int, least_chunk: int) -> int:
    """How many leading blocks of a prompt may come from the cache.

    At least one prompt token is always computed, to have logits; more if the backend's smallest chunk is larger
    (:class:`ekiden.state.runner.ChunkRules`).
    """
    return max(0, (num_prompt_tokens - least_chunk) // block_size)
