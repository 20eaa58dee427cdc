"""Draws one token for each row, exactly, from the reduced logits.

The distribution is the softmax of the logits over the temperature, truncated in Hugging Face's order: to the ``top_k``
highest tokens, then to the nucleus, then to the tokens with at least ``min_p`` times the highest probability. A token
belongs to the nucleus when the mass of the tokens before it (by logit, then by lower id) is below ``top_p``; at least
one token always does.

Theory of operation. A row without ``top_k`` draws from the whole distribution, by inverting the cumulative sums of the
groups and then of one group. If the truncations would remove the token, the row draws again (rejection sampling), so
the result has exactly the truncated distribution. The group maxima and sums alone mostly tell whether a token stays:
the mass before it is at most the mass of the groups whose maximum reaches its logit. A row with ``top_k``, or one whose
draws were rejected too often, sorts its likely tokens instead (``prefix.py``).
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ekiden.sampling import prefix
from ekiden.sampling.random_bits import DRAWS_PER_BLOCK, uniforms
from ekiden.sampling.reduction import GROUP_SIZE, Doubles, FloatMatrix, FloatRow, Ids, Reduced
from ekiden.state.sampling_params import SamplingParams

Flags = npt.NDArray[np.bool_]

BLOCKS_OF_ATTEMPTS = 4
"""Blocks of random numbers that a row may use before it sorts its likely tokens."""


class Draw(NamedTuple):
    """One row's draw: ``row`` is its index in the logits; its random numbers follow from ``seed`` and ``position``."""

    row: int
    params: SamplingParams
    seed: int
    position: int


def choose(logits: FloatMatrix, reduced: Reduced, draws: list[Draw]) -> list[int]:
    """A token id for each draw. ``logits`` is ``[rows, padded vocabulary]`` and only read; temperatures are over 0."""
    tokens: dict[int, int] = {}
    pending = np.array([index for index, draw in enumerate(draws) if draw.params.top_k == 0], np.int64)
    for block, attempt in itertools.product(range(BLOCKS_OF_ATTEMPTS), range(DRAWS_PER_BLOCK)):
        if not len(pending):
            break
        trying = [draws[index] for index in pending]
        if attempt == 0:
            numbers = _uniforms(trying, block)
        ids, kept = _try(logits, reduced, trying, numbers[attempt])
        tokens.update(zip(pending[kept].tolist(), ids[kept].tolist(), strict=True))
        pending, numbers = pending[~kept], numbers[:, ~kept]
    rest = [index for index in range(len(draws)) if index not in tokens]
    if rest:
        chosen = _draw_sorted(logits, reduced, [draws[index] for index in rest])
        tokens.update(zip(rest, chosen, strict=True))
    return [tokens[index] for index in range(len(draws))]


def _uniforms(draws: list[Draw], block: int) -> Doubles:
    return uniforms([draw.seed for draw in draws], [draw.position for draw in draws], block)


def _try(logits: FloatMatrix, reduced: Reduced, draws: list[Draw], numbers: Doubles) -> tuple[Ids, Flags]:
    """A token for each draw from its untruncated distribution, and whether ``top_p`` and ``min_p`` keep it.

    Inverts each row's cumulative distribution at its number: first over the groups, then within the group found. All
    masses of a row are in units of its most likely token's.
    """
    rows = np.array([draw.row for draw in draws])
    each = np.arange(len(rows))
    maxima, sums = reduced.maxima[rows], reduced.sums[rows]
    highest = maxima.max(axis=1)
    by_group = np.cumsum(sums, axis=1, dtype=np.float64)
    group, inside = _invert(by_group, numbers)
    members = logits.reshape(len(logits), -1, GROUP_SIZE)[rows, group].astype(np.float64)
    temperatures = np.array([draw.params.temperature for draw in draws])
    weights = np.exp((members - highest[:, None]) / temperatures[:, None])
    member, _ = _invert(np.cumsum(weights, axis=1), inside)
    ids, drawn, mass = group * GROUP_SIZE + member, members[each, member], weights[each, member]
    kept = mass >= np.array([draw.params.min_p for draw in draws])
    top_p = np.array([draw.params.top_p for draw in draws])
    if (top_p >= 1.0).all():
        return ids, kept
    limits = top_p * by_group[:, -1]
    at_most = np.where(maxima >= drawn[:, None], sums, 0.0).sum(axis=1, dtype=np.float64) - mass
    for index in np.flatnonzero(kept & (top_p < 1.0) & (at_most >= limits)).tolist():
        row, temperature = logits[rows[index]], draws[index].params.temperature
        before = _mass_before(row, drawn[index], ids[index], temperature, float(highest[index]))
        kept[index] = before < limits[index]
    return ids, kept


def _invert(cumulative: Doubles, numbers: Doubles) -> tuple[Ids, Doubles]:
    """For each row, the first index whose cumulative mass exceeds ``number * total``, and how far into that index's
    mass the number lies, in [0, 1]. An index without mass is never chosen."""
    each = np.arange(len(cumulative))
    total = cumulative[:, -1]
    target = np.minimum(numbers * total, np.nextafter(total, 0.0))
    index = (cumulative <= target[:, None]).sum(axis=1)
    before = np.where(index > 0, cumulative[each, index - 1], 0.0)
    share = (target - before) / (cumulative[each, index] - before)
    return index, np.clip(share, 0.0, 1.0)


def _mass_before(row: FloatRow, logit: np.float64, token: np.int64, temperature: float, highest: float) -> float:
    """The mass of the tokens before ``token``, whose logit is ``logit``."""
    ids = np.flatnonzero(row >= logit.astype(np.float32))
    values = row[ids].astype(np.float64)
    before = values[(values > logit) | (ids < token)]
    return float(np.exp((before - highest) / temperature).sum())


def _draw_sorted(logits: FloatMatrix, reduced: Reduced, draws: list[Draw]) -> list[int]:
    """Draw from the sorted tokens that the truncations keep, with random numbers that no attempt has used."""
    numbers = _uniforms(draws, BLOCKS_OF_ATTEMPTS)[0]
    kept = prefix.kept_tokens(logits, reduced, [draw.row for draw in draws], [draw.params for draw in draws])
    chosen = []
    for tokens, number in zip(kept, numbers, strict=True):
        cumulative = np.cumsum(tokens.weights)
        total = float(cumulative[-1])
        # As in _invert, but each row has a different length.
        target = min(float(number) * total, math.nextafter(total, 0.0))
        chosen.append(int(tokens.ids[cumulative.searchsorted(target, side="right")]))
    return chosen
