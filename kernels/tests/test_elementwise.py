"""Normalisation and gating: near what they mean, and the same bits on every instruction set."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.tests.library import Isa, Library, equal_bits

# What every instruction set from AVX2 on uses is compiled for AVX2 in the emulation.
FAST = [Isa.AVX2, Isa.AVX2_VNNI, Isa.AVX512_VNNI]
SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


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
