"""The kernels: what they compute, and that it is the same bits on every instruction set.

One file, so that parallel runs build the library once.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.build import BLOCK, Floats, Isa, Library, Linear, equal_bits

FAST = [Isa.AVX2, Isa.AVX2_VNNI, Isa.AVX512_VNNI]
VNNI = [Isa.AVX2_VNNI, Isa.AVX512_VNNI]
SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


def layer_of(rng: np.random.Generator, n: int, k: int, group: int) -> Linear:
    weights = rng.integers(-128, 128, (n, k), np.int8)
    return Linear(weights=weights, scales=rng.uniform(0.001, 0.1, n).astype(np.float32), group=group)


def activations_of(rng: np.random.Generator, rows: int, k: int) -> Floats:
    """Of every size, some of them zero."""
    x = rng.standard_normal((rows, k)) * 10.0 ** rng.integers(-3, 4, (rows, 1))
    return np.where(rng.random((rows, k)) < 0.1, 0, x).astype(np.float32)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Linear, Floats]:
    group = draw(st.sampled_from([32, 64, 96, 192, 512]))
    groups = draw(st.integers(1, 4 if group < 512 else 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    layer = layer_of(rng, draw(st.integers(1, 100)), group * groups, group)
    return layer, activations_of(rng, draw(st.integers(1, 40)), layer.k)


def test_portable_equals_integer_arithmetic(kernels: Library) -> None:
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
    assert equal_bits(kernels.linear(Isa.PORTABLE, x, layer), expected * layer.scales)


@pytest.mark.parametrize("isa", FAST)
@given(problem=problems())
@settings(max_examples=25, deadline=None)
def test_every_instruction_set_equals_portable(kernels: Library, isa: Isa, problem: tuple[Linear, Floats]) -> None:
    if not kernels.usable(isa):
        pytest.skip(f"no {isa.name} here")
    layer, x = problem
    assert equal_bits(kernels.linear(isa, x, layer), kernels.linear(Isa.PORTABLE, x, layer))


@pytest.mark.parametrize("isa", VNNI)
@given(problem=problems())
@settings(max_examples=25, deadline=None)
def test_vnni_without_its_instruction_equals_portable(
    emulated: Library, isa: Isa, problem: tuple[Linear, Floats]
) -> None:
    layer, x = problem
    assert equal_bits(emulated.linear(isa, x, layer), emulated.linear(Isa.PORTABLE, x, layer))


@pytest.mark.parametrize("isa", list(Isa))
def test_the_largest_sums_are_exact(emulated: Library, isa: Isa) -> None:
    layer = Linear(weights=np.full((17, 512), -128, np.int8), scales=np.ones(17, np.float32), group=512)
    x = np.full((13, 512), 127, np.float32)
    assert (emulated.linear(isa, x, layer) == -128 * 127 * 512).all()


@pytest.mark.parametrize("isa", list(Isa))
def test_a_row_is_the_same_beside_any_others(emulated: Library, isa: Isa) -> None:
    rng = np.random.default_rng(2)
    layer = layer_of(rng, 41, 192, 64)
    x = activations_of(rng, 30, layer.k)
    together = emulated.linear(isa, x, layer)
    for row in range(len(x)):
        assert equal_bits(emulated.linear(isa, x[row : row + 1], layer)[0], together[row])


@pytest.mark.parametrize("isa", list(Isa))
def test_parts_make_the_whole_and_write_nothing_else(emulated: Library, isa: Isa) -> None:
    rng = np.random.default_rng(3)
    layer = layer_of(rng, 70, 64, 32)  # five blocks
    x = activations_of(rng, 9, layer.k)
    whole = emulated.linear(isa, x, layer)
    for rows, blocks in (((0, 5), (0, 3)), ((5, 9), (0, 3)), ((0, 9), (3, 5)), ((2, 3), (1, 2))):
        part = emulated.linear(isa, x, layer, rows=rows, blocks=blocks)
        expected = np.full_like(whole, -1)
        inside = np.s_[rows[0] : rows[1], blocks[0] * BLOCK : blocks[1] * BLOCK]
        expected[inside] = whole[inside]
        assert equal_bits(part, expected)


@pytest.mark.parametrize("isa", list(Isa))
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_nan_and_no_other(emulated: Library, isa: Isa, bad: float) -> None:
    rng = np.random.default_rng(4)
    layer = layer_of(rng, 20, 128, 64)
    x = activations_of(rng, 6, layer.k)
    expected = emulated.linear(isa, x, layer)
    x[3, 17] = bad
    expected[3] = np.nan
    assert equal_bits(emulated.linear(isa, x, layer), expected)


@pytest.mark.parametrize("isa", list(Isa))
def test_zeros_and_the_smallest_numbers(emulated: Library, isa: Isa) -> None:
    layer = layer_of(np.random.default_rng(5), 20, 64, 32)
    x = np.zeros((4, 64), np.float32)
    x[1, :] = -0.0
    x[2, :] = 1e-45  # max / 127 is zero
    x[3, 5], x[3, 6] = 2e-43, -2e-43  # the scale is subnormal, and x / scale larger than 127 before it is bounded
    y = emulated.linear(isa, x, layer)
    assert (y[:3] == 0).all()
    assert equal_bits(y, emulated.linear(Isa.PORTABLE, x, layer))


def test_kernels_agree_with_portable_unless_wrong(kernels: Library, emulated: Library, faulty: Library) -> None:
    assert all(kernels.agrees(isa) for isa in Isa if kernels.usable(isa))
    assert all(emulated.agrees(isa) for isa in Isa)
    assert not any(faulty.agrees(isa) for isa in VNNI)


def test_an_instruction_set_can_be_preferred(kernels: Library) -> None:
    best = kernels.best
    assert best == max(isa for isa in Isa if kernels.usable(isa))
    try:
        assert kernels.prefer(Isa.PORTABLE)
        assert kernels.best is Isa.PORTABLE
        for isa in Isa:
            if not kernels.usable(isa):
                assert not kernels.prefer(isa)
                assert kernels.best is Isa.PORTABLE
    finally:
        assert kernels.prefer(best)


def test_gate_is_silu(kernels: Library) -> None:
    near = np.linspace(-93, 93, 200_001, dtype=np.float32)
    small = np.float32(10) ** np.linspace(-37, 0, 20_001, dtype=np.float32)
    gate = np.concatenate([near, small, -small])
    out = kernels.gate(Isa.PORTABLE, gate, np.ones_like(gate))
    wide = gate.astype(np.float64)
    expected = wide / (1 + np.exp(-wide))
    normal = np.abs(expected) >= SMALLEST_NORMAL
    error = np.abs(out - expected)
    assert (error[normal] <= 2e-7 * np.abs(expected[normal])).all()
    assert (error[~normal] <= 2e-45).all()  # a unit in the last place of a subnormal number


@pytest.mark.parametrize("isa", [Isa.PORTABLE, *FAST])
def test_gate_at_the_ends(emulated: Library, isa: Isa) -> None:
    gate = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, -127.5, 2e-44], np.float32)
    up = np.full_like(gate, 2)
    expected = np.array([0.0, -0.0, np.inf, -0.0, np.nan, np.inf, -0.0, -0.0, 2e-44], np.float32)
    assert equal_bits(emulated.gate(isa, gate, up), expected)


@pytest.mark.parametrize("isa", FAST)
@given(
    values=st.lists(st.tuples(*[st.floats(width=32)] * 2), min_size=1, max_size=40),
    spread=st.sampled_from([1.0, 30.0, 120.0]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=50, deadline=None)
def test_every_gate_equals_portable(
    emulated: Library, isa: Isa, values: list[tuple[float, float]], spread: float, seed: int
) -> None:
    drawn = np.array(values, np.float32)
    random = np.random.default_rng(seed).uniform(-spread, spread, (2, 50)).astype(np.float32)
    gate, up = (np.concatenate([drawn[:, i], random[i]]) for i in range(2))
    assert equal_bits(emulated.gate(isa, gate, up), emulated.gate(Isa.PORTABLE, gate, up))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("isa", [Isa.PORTABLE, *FAST])
@pytest.mark.parametrize("k", [1, 7, 8, 9, 16, 23, 31, 576])
def test_rms_norm(emulated: Library, isa: Isa, k: int, weighted: bool) -> None:
    rng = np.random.default_rng(k)
    x = rng.standard_normal(k).astype(np.float32)
    weight = rng.standard_normal(k).astype(np.float32) if weighted else None
    out = emulated.rms_norm(isa, x, 1e-5, weight)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean() + 1e-5) * (1 if weight is None else weight)
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    assert equal_bits(out, emulated.rms_norm(Isa.PORTABLE, x, 1e-5, weight))
