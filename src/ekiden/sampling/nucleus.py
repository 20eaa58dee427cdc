"""Draws one token a row from reduced logits, exactly, while touching few of them.

Theory of operation. Temperature alone: invert the cumulative distribution over group sums, then inside one group.
With truncation (``top_k``, then ``top_p`` of what that leaves, then ``min_p`` of the highest probability; Hugging
Face's order): every truncation keeps a prefix of the tokens sorted by logit, ties by lower id. The groups with the
highest maxima hold, for certain, every token above the highest maximum of the groups left out; if the prefix ends
within those tokens it is known exactly. Otherwise the row is looked at in full.

A token belongs to the nucleus when the mass of the tokens before it is below ``top_p``; there is always one.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ekiden.sampling.reduction import GROUP_SIZE, FloatMatrix, Reduced
from ekiden.state.sampling_params import SamplingParams

Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

GROUPS_LOOKED_AT = 32


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The most likely tokens of a row, highest first, with ``exp((logit - maximum) / temperature)``."""

    ids: Ids
    weights: Doubles
    complete: bool
    """True when every token that any truncation could keep is here."""


def choose(
    logits: FloatMatrix, reduced: Reduced, rows: list[int], params: list[SamplingParams], uniforms: Doubles
) -> list[int]:
    """A token id for each of ``rows`` of ``logits`` (``[*, padded vocabulary]``, read in place).

    ``params`` and ``uniforms`` (in [0, 1)) stand beside ``rows``; every temperature is above 0.
    """
    tokens = [0] * len(rows)
    truncated = [index for index, each in enumerate(params) if truncates(each)]
    prefixes = _likely_tokens(logits, reduced, [rows[i] for i in truncated], [params[i].temperature for i in truncated])
    for index, prefix in zip(truncated, prefixes, strict=True):
        row, each = rows[index], params[index]
        total = float(reduced.sums[row].sum(dtype=np.float64))
        cumulative = np.cumsum(prefix.weights)
        kept = _kept(prefix, cumulative, total, each)
        if kept is None:
            prefix = _whole_row(logits[row], reduced.maxima[row].max(), total, each)
            cumulative = np.cumsum(prefix.weights)
            kept = _kept(prefix, cumulative, total, each) or len(prefix.ids)
        tokens[index] = int(prefix.ids[_invert(cumulative[:kept], uniforms[index])])
    for index in set(range(len(rows))).difference(truncated):
        row = rows[index]
        tokens[index] = _draw_untruncated(logits[row], reduced, row, params[index].temperature, uniforms[index])
    return tokens


def truncates(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def _kept(prefix: _Prefix, cumulative: Doubles, total: float, params: SamplingParams) -> int | None:
    """How many tokens of the prefix the truncations keep; None when the prefix is too short to tell."""
    known = len(cumulative)
    kept: int | None = known if prefix.complete else None
    if params.top_k > 0:
        if params.top_k <= known:
            kept, total = params.top_k, float(cumulative[params.top_k - 1])
        elif not prefix.complete:
            return None
    if params.top_p < 1.0:
        nucleus = int(np.searchsorted(cumulative, params.top_p * total)) + 1
        if nucleus <= known:
            kept = nucleus if kept is None else min(kept, nucleus)
    if params.min_p > 0.0:
        likely = int(np.searchsorted(-prefix.weights, -params.min_p, side="right"))
        if likely < known or kept is not None:
            kept = likely if kept is None else min(kept, likely)
    return kept


def _likely_tokens(logits: FloatMatrix, reduced: Reduced, rows: list[int], temperatures: list[float]) -> list[_Prefix]:
    """For each row the tokens above the highest maximum of the groups that are not looked at."""
    if not rows:
        return []
    num_groups = reduced.maxima.shape[1]
    maxima = reduced.maxima[rows]
    complete = num_groups <= GROUPS_LOOKED_AT
    if complete:
        floor = np.full(len(rows), -np.inf, np.float32)
    else:
        cut = num_groups - GROUPS_LOOKED_AT - 1
        floor = np.partition(maxima, cut, axis=1)[:, cut]
    at, groups = np.nonzero(maxima > floor[:, None])
    looked_at = logits.reshape(len(logits), num_groups, GROUP_SIZE)[np.array(rows)[at], groups]
    found = np.flatnonzero(looked_at > floor[at, None])
    values, block = looked_at.ravel()[found].astype(np.float64), found // GROUP_SIZE
    ids = groups[block] * GROUP_SIZE + found % GROUP_SIZE
    ends = np.searchsorted(at[block], np.arange(len(rows) + 1))
    prefixes = []
    for index, temperature in enumerate(temperatures):
        mine = slice(ends[index], ends[index + 1])
        prefixes.append(_sorted_prefix(ids[mine], values[mine], float(maxima[index].max()), temperature, complete))
    return prefixes


def _sorted_prefix(ids: Ids, values: Doubles, maximum: float, temperature: float, complete: bool) -> _Prefix:
    """``ids`` ascend, so a stable sort by value breaks ties by lower id."""
    order = np.argsort(-values, kind="stable")
    return _Prefix(ids[order], np.exp((values[order] - maximum) / temperature), complete)


def _whole_row(row: npt.NDArray[np.float32], maximum: np.float32, total: float, params: SamplingParams) -> _Prefix:
    """Every token of the row that its truncations could keep: those above a weight that none of them goes below."""
    values = row.astype(np.float64)
    weights = np.exp((values - maximum) / params.temperature)
    floor = params.min_p
    if params.top_k > 0:
        count = min(params.top_k, len(row))
        floor = max(floor, float(np.partition(weights, len(row) - count)[len(row) - count]))
    elif params.top_p < 1.0:
        # The tokens from the last of the nucleus on hold more than 1 - top_p of the mass, so the first of them, which
        # is the largest, holds more than its even share. A little less, for the rounding of ``total``.
        floor = max(floor, 0.999 * (1.0 - params.top_p) * total / len(row))
    ids = np.flatnonzero(weights >= floor)
    return _sorted_prefix(ids, values[ids], float(maximum), params.temperature, complete=True)


def _draw_untruncated(
    row: npt.NDArray[np.float32], reduced: Reduced, at: int, temperature: float, uniform: float
) -> int:
    """Invert over the groups, then inside the one that was hit."""
    by_group = np.cumsum(reduced.sums[at], dtype=np.float64)
    group = _invert(by_group, uniform)
    before = float(by_group[group - 1]) if group else 0.0
    inside = (uniform * float(by_group[-1]) - before) / (float(by_group[group]) - before)
    first = group * GROUP_SIZE
    values = row[first : first + GROUP_SIZE].astype(np.float64)
    weights = np.exp((values - float(reduced.maxima[at].max())) / temperature)
    return first + _invert(np.cumsum(weights), min(max(inside, 0.0), 1.0))


def _invert(cumulative: Doubles, uniform: float) -> int:
    """The first index whose cumulative mass exceeds ``uniform`` of the whole; never one without mass."""
    total = float(cumulative[-1])
    target = min(uniform * total, float(np.nextafter(total, 0.0)))
    return int(np.searchsorted(cumulative, target, side="right"))
