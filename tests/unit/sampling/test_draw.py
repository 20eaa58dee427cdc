"""Draws follow the exact distribution, and a row's draw is its own."""

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ekiden.sampling import draw, prefix
from ekiden.sampling.draw import Draw, choose
from ekiden.sampling.reduction import GROUP_SIZE, numpy_reduce, pad_vocabulary
from ekiden.state.sampling_params import SamplingParams
from tests.unit.sampling.naive import probabilities

DRAWS = 3000 if "SOAK_EXAMPLES" in os.environ else 1500
SMALL, LARGE = 300, 4500  # three groups, and more groups than are looked at


def logits_of(width: int, spread: float = 2.0, seed: int = 3) -> np.ndarray:
    row = np.random.default_rng(seed).normal(0.0, spread, width).astype(np.float32)
    row[width // 3 : width // 3 + 5] = row.max()  # ties at the top, where they matter
    return row


def draw_many(row: np.ndarray, params: SamplingParams, count: int) -> np.ndarray:
    """``count`` draws with seeds 0, 1, ... at position 9."""
    tokens: list[int] = []
    for first in range(0, count, 500):
        seeds = range(first, min(first + 500, count))
        matrix = pad_vocabulary(np.tile(row, (len(seeds), 1)))
        reduced = numpy_reduce(matrix, np.full(len(seeds), 1 / params.temperature, np.float32))
        tokens += choose(matrix, reduced, [Draw(at, params, seed, 9) for at, seed in enumerate(seeds)])
    return np.bincount(tokens, minlength=len(row))


def chi_square_p(counts: np.ndarray, expected_share: np.ndarray) -> float:
    """The p-value, with rare tokens joined so that every class expects at least 8."""
    expected = expected_share * counts.sum()
    assert not counts[expected_share == 0].any(), "a token that the truncation removes was drawn"
    order = np.argsort(-expected)
    rare = int((expected >= 8).sum())
    observed = np.append(counts[order][:rare], counts[order][rare:].sum())
    hoped = np.append(expected[order][:rare], expected[order][rare:].sum())
    keep = hoped > 0
    return float(stats.chisquare(observed[keep], hoped[keep]).pvalue) if keep.sum() > 1 else 1.0


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 1.3, "top_p": 0.05},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.2, "top_k": 60},
    {"temperature": 1.2, "top_k": 200},
    {"temperature": 1.0, "top_k": 100_000},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 2.0, "min_p": 0.4},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.9},
    {"temperature": 1.1, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.1, "top_k": 50, "top_p": 0.9, "min_p": 0.05},
]


@pytest.mark.parametrize("fields", SETTINGS, ids=str)
@pytest.mark.parametrize("width", [SMALL, LARGE])
def test_draws_follow_the_distribution(width: int, fields: dict[str, Any]):
    params, row = SamplingParams(**fields), logits_of(width)
    assert chi_square_p(draw_many(row, params, DRAWS), probabilities(row, params)) > 1e-3


@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"min_p": 0.2}, {"top_p": 0.9, "min_p": 0.02}], ids=str)
def test_rows_that_never_keep_a_draw_are_drawn_from_their_sorted_tokens(fields, monkeypatch):
    monkeypatch.setattr(draw, "BLOCKS_OF_ATTEMPTS", 0)
    params, row = SamplingParams(**fields), logits_of(LARGE, spread=1.0)  # flat: the prefix is not enough
    assert chi_square_p(draw_many(row, params, DRAWS), probabilities(row, params)) > 1e-3


@pytest.mark.parametrize("fields", SETTINGS, ids=str)
@pytest.mark.parametrize("spread", [0.5, 2.0, 8.0])
def test_kept_tokens_are_those_of_a_full_sort(spread, fields):
    params, row = SamplingParams(**fields), logits_of(LARGE, spread)
    expected = probabilities(row, params)
    padded = pad_vocabulary(row[None, :])
    reduced = numpy_reduce(padded, np.array([1 / params.temperature], np.float32))
    (kept,) = prefix.kept_tokens(padded, reduced, [0], [params])
    # The nucleus' last token may go either way when its mass lies within float32's rounding of the border.
    assert len(set(kept.ids.tolist()) ^ set(np.flatnonzero(expected).tolist())) <= 1
    np.testing.assert_allclose(kept.weights / kept.weights.sum(), expected[kept.ids], rtol=2e-3, atol=1e-9)


params_of_rows = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 0.8, 1.0, 2.5]),
    top_p=st.sampled_from([1.0, 0.99, 0.9, 0.3]),
    top_k=st.sampled_from([0, 0, 0, 1, 7, 50, 400]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.5]),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(params_of_rows, st.integers(0, 2**63), st.integers(0, 4000)), min_size=2, max_size=12))
def test_a_row_draws_the_same_alone_and_in_any_company(rows):
    generator = np.random.default_rng(0)
    matrix = generator.normal(0, 3, (len(rows), 40 * GROUP_SIZE)).astype(np.float32)
    inverse = np.array([1 / params.temperature for params, _, _ in rows], np.float32)
    draws = [Draw(at, *row) for at, row in enumerate(rows)]
    together = choose(matrix, numpy_reduce(matrix, inverse), draws)
    backwards = choose(matrix, numpy_reduce(matrix, inverse), draws[::-1])[::-1]
    alone = [
        choose(matrix[at : at + 1], numpy_reduce(matrix[at : at + 1], inverse[at : at + 1]), [Draw(0, *row)])[0]
        for at, row in enumerate(rows)
    ]
    assert together == backwards == alone


def test_a_draw_repeats_and_differs_by_seed_and_position():
    matrix = pad_vocabulary(np.zeros((3, 5000), np.float32))
    reduced = numpy_reduce(matrix, np.ones(3, np.float32))
    params = SamplingParams(top_p=0.999)
    draws = [Draw(0, params, 1, 10), Draw(1, params, 1, 11), Draw(2, params, 2, 10)]
    assert choose(matrix, reduced, draws) == choose(matrix, reduced, draws)
    assert len(set(choose(matrix, reduced, draws))) == 3


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 100.0])
def test_extreme_temperatures_stay_finite(temperature):
    row = logits_of(SMALL, spread=30.0)
    row[7] = row.max() + 50
    counts = draw_many(row, SamplingParams(temperature=temperature, top_p=0.9), 200)
    if temperature < 1:
        assert counts[7] == 200
    else:
        assert (counts > 0).sum() > 50, "nearly even, so that no few tokens have it all"


def test_tokens_without_mass_are_never_drawn():
    row = np.full(SMALL, -np.inf, np.float32)
    row[[3, 200]] = 1.0
    for fields in ({}, {"top_k": 10}, {"top_p": 0.999}, {"top_k": 10, "top_p": 0.999}, {"min_p": 0.001}):
        counts = draw_many(row, SamplingParams(**fields), 400)
        assert counts[3] + counts[200] == 400
        assert counts.min() == 0
        assert counts[3] > 100 < counts[200]
