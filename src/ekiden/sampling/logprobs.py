"""Log-probabilities of the model's own distribution, before temperature, penalties, bias and truncation."""

import numpy as np

from ekiden.sampling.reduction import FloatRow, Ids
from ekiden.state.request import TokenLogprobs


def token_logprobs(row: FloatRow, token: int, num_top: int) -> TokenLogprobs:
    """The log-softmax of ``row`` (``[vocab]``) at ``token`` and at its ``num_top`` highest tokens."""
    highest = row.max()
    log_total = float(np.log(np.exp(row - highest).sum(dtype=np.float64))) + float(highest)
    top = tuple((int(index), float(row[index]) - log_total) for index in highest_tokens(row, num_top))
    return TokenLogprobs(logprob=float(row[token]) - log_total, top=top)


def prompt_token_logprobs(row: FloatRow, token: int, num_top: int) -> TokenLogprobs:
    """As :func:`token_logprobs`, with the token's rank (1 is the highest; ties go to the lower id)."""
    found = token_logprobs(row, token, num_top)
    above = int(np.count_nonzero(row > row[token])) + int(np.count_nonzero(row[:token] == row[token]))
    return TokenLogprobs(logprob=found.logprob, top=found.top, rank=above + 1)


def highest_tokens(row: FloatRow, count: int) -> Ids:
    """The ids of the ``count`` highest logits, highest first; of equal logits the lower id comes first."""
    count = min(count, len(row))
    if count == 0:
        return np.empty(0, np.int64)
    threshold = np.partition(row, len(row) - count)[len(row) - count]
    candidates = np.flatnonzero(row >= threshold)
    order = np.argsort(-row[candidates], kind="stable")
    return candidates[order][:count]
