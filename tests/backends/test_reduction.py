"""The compiled reduction against the plain one, and its independence of the batch, bit by bit."""

import numpy as np
import openvino as ov
import pytest

from ekiden.backends.openvino.reduction import OpenVINOReducer
from ekiden.sampling.reduction import numpy_reduce
from ekiden.sampling.sampler import Sampler
from tests.unit.sampling.naive import sample, sequence


@pytest.fixture(scope="module")
def reducer() -> OpenVINOReducer:
    return OpenVINOReducer(ov.Core(), threads=2)


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 4, (64, 49_152)).astype(np.float32)


def test_it_agrees_with_the_plain_reduction(reducer, logits):
    inverse = np.linspace(0.5, 3, 64).astype(np.float32)
    found, expected = reducer(logits, inverse), numpy_reduce(logits, inverse)
    assert (found.maxima == expected.maxima).all()
    np.testing.assert_allclose(found.sums, expected.sums, rtol=2e-5, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 17, 63])
def test_a_rows_result_does_not_depend_on_the_others(rows, reducer, logits):
    inverse = np.linspace(0.5, 3, 64).astype(np.float32)
    whole = reducer(logits, inverse)
    maxima, sums = whole.maxima.copy(), whole.sums.copy()
    for first in (0, 64 - rows):
        part = reducer(logits[first : first + rows], inverse[first : first + rows])
        assert (part.maxima == maxima[first : first + rows]).all()
        assert (part.sums == sums[first : first + rows]).all()


def test_masked_and_padded_tokens_have_no_mass(reducer):
    row = np.full((2, 256), -np.inf, np.float32)
    row[:, 130] = 1.0
    reduced = reducer(row, np.ones(2, np.float32))
    assert reduced.sums.tolist() == [[0.0, 1.0]] * 2


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 0.8, "top_p": 0.95}, {"temperature": 1.0}, {"top_k": 40, "top_p": 0.9}, {"min_p": 0.05}],
    ids=str,
)
def test_the_sampler_chooses_the_same_with_either(fields, reducer, logits):
    rows = [sequence(seed=at, **fields) for at in range(64)]
    assert sample(Sampler(reducer), logits, rows) == sample(Sampler(numpy_reduce), logits, rows)
