"""Finds the tokens that a row's truncations keep, highest first, without sorting the whole row.

Every truncation keeps a prefix of the tokens sorted by logit (of equal logits the lower id comes first). The groups
with the highest maxima contain every token above the highest maximum of the other groups. If the prefix ends within
those tokens, it is known exactly; otherwise the whole row is searched.
"""

from typing import NamedTuple

import numpy as np

from ekiden.sampling.reduction import GROUP_SIZE, Doubles, FloatMatrix, FloatRow, Ids, Reduced
from ekiden.state.sampling_params import SamplingParams

FEWEST_GROUPS = 32
MOST_GROUPS = 128


class Tokens(NamedTuple):
    """Tokens of one row, highest first, with ``exp((logit - row maximum) / temperature)``."""

    ids: Ids
    weights: Doubles


def kept_tokens(logits: FloatMatrix, reduced: Reduced, rows: list[int], params: list[SamplingParams]) -> list[Tokens]:
    """For each of ``rows`` of ``logits``, the tokens that its truncations keep: at least one."""
    num_groups = reduced.maxima.shape[1]
    wanted = min(max(FEWEST_GROUPS, *(each.top_k for each in params)), MOST_GROUPS)
    found = _likely_tokens(logits, reduced, rows, params, min(wanted, num_groups))
    kept = []
    for tokens, row, each in zip(found, rows, params, strict=True):
        total = float(reduced.sums[row].sum(dtype=np.float64))
        count = _count_kept(tokens, total, each, complete=wanted >= num_groups)
        if count is None:
            tokens = _candidates(logits[row], float(reduced.maxima[row].max()), total, each)
            count = _count_kept(tokens, total, each, complete=True)
            assert count is not None
        kept.append(Tokens(tokens.ids[:count], tokens.weights[:count]))
    return kept


def _count_kept(tokens: Tokens, total: float, params: SamplingParams, *, complete: bool) -> int | None:
    """How many of ``tokens`` the truncations keep; None if that depends on tokens which are not among them.

    ``complete`` says that ``tokens`` holds every token that a truncation may keep. ``total`` is the row's whole mass.
    """
    known = len(tokens.ids)
    cumulative = np.cumsum(tokens.weights)
    counts = [known] if complete else []
    if params.top_k > 0:
        if params.top_k <= known:
            counts, total = [params.top_k], float(cumulative[params.top_k - 1])
        elif not complete:
            return None
    if params.top_p < 1.0:
        nucleus = int(np.searchsorted(cumulative, params.top_p * total)) + 1
        if nucleus <= known:
            counts.append(nucleus)
    if params.min_p > 0.0:
        likely = int(np.searchsorted(-tokens.weights, -params.min_p, side="right"))
        if likely < known or counts:
            counts.append(likely)
    return min(counts, default=None)


def _likely_tokens(
    logits: FloatMatrix, reduced: Reduced, rows: list[int], params: list[SamplingParams], num_looked_at: int
) -> list[Tokens]:
    """For each row, its tokens above the highest maximum of the groups left out (all but ``num_looked_at``)."""
    num_groups = reduced.maxima.shape[1]
    maxima = reduced.maxima[rows]
    if num_looked_at == num_groups:
        floor = np.full(len(rows), -np.inf, np.float32)
    else:
        cut = num_groups - num_looked_at - 1
        floor = np.partition(maxima, cut, axis=1)[:, cut]
    at, groups = np.nonzero(maxima > floor[:, None])
    members = logits.reshape(len(logits), num_groups, GROUP_SIZE)[np.array(rows)[at], groups]
    found = np.flatnonzero(members > floor[at, None])
    values, block = members.ravel()[found], found // GROUP_SIZE
    ids = groups[block] * GROUP_SIZE + found % GROUP_SIZE
    ends = np.searchsorted(at[block], np.arange(len(rows) + 1))
    result = []
    for index, each in enumerate(params):
        mine = slice(ends[index], ends[index + 1])
        result.append(_sorted(ids[mine], values[mine], float(maxima[index].max()), each.temperature))
    return result


def _sorted(ids: Ids, values: FloatRow, maximum: float, temperature: float) -> Tokens:
    """Sort tokens by value. ``ids`` ascend, so a stable sort puts the lower id first among equal values."""
    order = np.argsort(-values, kind="stable")
    weights = np.exp((values[order].astype(np.float64) - maximum) / temperature)
    return Tokens(ids[order], weights)


def _candidates(row: FloatRow, maximum: float, total: float, params: SamplingParams) -> Tokens:
    """Every token of the row that its truncations may keep: those at or above a lower bound of their logits."""
    lowest = -np.inf
    if params.min_p > 0.0:
        lowest = maximum + params.temperature * float(np.log(params.min_p))
    if params.top_k > 0:
        count = min(params.top_k, len(row))
        lowest = max(lowest, float(np.partition(row, len(row) - count)[len(row) - count]))
    elif params.top_p < 1.0:
        # The last token of the nucleus and those after it hold more than 1 - top_p of the mass. The first of them is
        # the largest, so it holds more than an even share of that mass.
        share = (1.0 - params.top_p) * total / len(row)
        lowest = max(lowest, maximum + params.temperature * float(np.log(share)))
    if lowest > -np.inf:
        # Leave room for the rounding of logarithm and total; the caller removes tokens that are too low.
        lowest -= 1e-5 * max(1.0, abs(lowest))
    ids = np.flatnonzero((row >= lowest) & (row > -np.inf))
    return _sorted(ids, row[ids], maximum, params.temperature)
