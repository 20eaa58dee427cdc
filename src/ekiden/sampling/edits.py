"""Edits one row's logits before a token is chosen: bias, penalties, forbidden tokens, and grammars.

Each function changes a copy of the row in place and uses only that row's own request. The order is vLLM's: bias, then
repetition, frequency and presence penalties, then forbidden tokens (before ``min_tokens``), then the grammar.
"""

from collections.abc import Sequence

import numpy as np

from ekiden.sampling.reduction import FloatRow
from ekiden.state.sampling_params import SamplingParams

# For each byte of a mask, what is added to its eight logits: 0 where the bit is set, otherwise -inf. Looking this up
# and adding it takes a tenth of the time of unpacking the bits and selecting by them.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_ADDED = np.where(_BITS == 1, np.float32(0.0), np.float32(-np.inf))


def edit(
    row: FloatRow,
    params: SamplingParams,
    token_ids: Sequence[int],
    num_prompt_tokens: int,
    forbidden: frozenset[int],
) -> None:
    """Apply everything that ``params`` asks for to ``row`` (``[vocab]``); ``token_ids`` is prompt then output."""
    if params.logit_bias:
        row[list(params.logit_bias)] += np.fromiter(params.logit_bias.values(), np.float32)
    if params.repetition_penalty != 1.0:
        # Each token of prompt and output once: a positive logit is divided by the penalty, others are multiplied by it.
        penalty = np.float32(params.repetition_penalty)
        seen = np.unique(np.array(token_ids, np.int64))
        row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        # An output token's logit is lowered for each of its occurrences, and once for being there.
        seen, counts = np.unique(np.array(token_ids[num_prompt_tokens:], np.int64), return_counts=True)
        row[seen] -= (params.frequency_penalty * counts + params.presence_penalty).astype(np.float32)
    if forbidden:
        row[list(forbidden)] = -np.inf


def restrict(row: FloatRow, allowed: bytes, original: FloatRow) -> None:
    """Allow only the tokens whose bit in ``allowed`` is set (lowest bit first); ids beyond its end are not allowed.

    A grammar at its end allows only end tokens. They are then allowed even if ``min_tokens`` forbids them, because no
    other token is possible. ``original`` is the row before any token was forbidden.
    """
    added = _ADDED.take(np.frombuffer(allowed, np.uint8), axis=0).ravel()[: len(row)]
    known = len(added)
    row[known:] = -np.inf
    row[:known] += added
    if row.max() == -np.inf:
        np.add(original[:known], added, out=row[:known])
