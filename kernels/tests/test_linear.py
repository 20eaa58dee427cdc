"""The integer product: what it computes, and that it is the same bits everywhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.tests.library import Floats, Isa, Library, Linear

FAST = [isa for isa in Isa if isa is not Isa.PORTABLE]


def layer_of(rng: np.random.Generator, n: int, k: int, group: int) -> Linear:
    weights = rng.integers(-128, 128, (n, k), np.int8)
    return Linear(weights=weights, scales=rng.uniform(0.001, 0.1, n).astype(np.float32), group=group)


def activations_of(rng: np.random.Generator, rows: int, k: int) -> Floats:
    """Of every size, some of them zero."""
    x = rng.standard_normal((rows, k)) * 10.0 ** rng.integers(-3, 4, (rows, 1))
    return np.where(rng.random((rows, k)) < 0.1, 0, x).astype(np.float32)


def equal_bits(a: Floats, b: Floats) -> bool:
    return bool(np.array_equal(a.view(np.int32), b.view(np.int32)))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Linear, Floats]:
    group = draw(st.sampled_from([32, 64, 96, 192, 512]))
    groups = draw(st.integers(1, 4 if group < 512 else 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    layer = layer_of(rng, draw(st.integers(1, 100)), group * groups, group)
    return layer, activations_of(rng, draw(st.integers(1, 40)), layer.k)


def test_portable_equals_integer_arithmetic(built: Library) -> None:
    rng = np.random.default_rng(1)
    rows, n, group, groups = 7, 37, 96, 3
    layer = layer_of(rng, n, group * groups, group)
    # Every group's largest is 127 * 2^e: its scale is that power of two, what is rounded are halves, and float64 holds
    # each fma without rounding.
    halves = rng.integers(-254, 255, (rows, groups, group)) / 2
    halves[..., 0] = 127
    powers = 2.0 ** rng.integers(-4, 5, (rows, groups, 1))
    x = (halves * powers).astype(np.float32).reshape(rows, -1)

    quantised = np.rint(halves).astype(np.int64)
    sums = np.einsum("rgi,ngi->rng", quantised, layer.weights.reshape(n, groups, group).astype(np.int64))
    expected = np.zeros((rows, n), np.float32)
    for g in range(groups):
        expected = (sums[..., g] * powers[:, g] + expected).astype(np.float32)
    assert equal_bits(built.linear(Isa.PORTABLE, x, layer), expected * layer.scales)


@pytest.mark.parametrize("isa", FAST)
@given(problem=problems())
@settings(max_examples=25, deadline=None)
def test_equals_portable(built: Library, isa: Isa, problem: tuple[Linear, Floats]) -> None:
    if not built.usable(isa):
        pytest.skip(f"no {isa.name} here")
    layer, x = problem
    assert equal_bits(built.linear(isa, x, layer), built.linear(Isa.PORTABLE, x, layer))
