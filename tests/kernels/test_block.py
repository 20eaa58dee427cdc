"""The operation between two attentions: it is what its products, norms and gate make one after another, to the bit.

Those are tested by themselves in `test_kernels.py`.
"""

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.build import Block, Floats, Isa, Library, Linear, equal_bits
from tests.kernels.test_kernels import activations_of, layer_of

HIDDEN, ATTENDED, INNER, QUERY, KEY_VALUE = 96, 64, 160, 72, 24  # blocks and pairs that are not full among them
EPSILON = 1e-5
ROWS = 140  # more than are computed at once

Inputs = tuple[Floats, Floats]
Doubles = npt.NDArray[np.float64]


def made(*, last: bool = False) -> tuple[Block, Inputs]:
    """A block and inputs for it, the same for every instruction set."""
    rng = np.random.default_rng(11)
    block = Block(
        output=layer_of(rng, HIDDEN, ATTENDED, 32),
        gate_up=layer_of(rng, 2 * INNER, HIDDEN, 96),
        down=layer_of(rng, HIDDEN, INNER, 160),
        projections=() if last else tuple(layer_of(rng, n, HIDDEN, 96) for n in (QUERY, KEY_VALUE, KEY_VALUE)),
        epsilon=EPSILON,
    )
    return block, (activations_of(rng, ROWS, HIDDEN), activations_of(rng, ROWS, ATTENDED))


def step_by_step(library: Library, block: Block, residual: Floats, attended: Floats) -> list[Floats]:
    def product(x: Floats, layer: Linear) -> Floats:
        return library.linear(Isa.PORTABLE, np.ascontiguousarray(x), layer)

    def normed(x: Floats) -> Floats:
        return np.stack([library.rms_norm(Isa.PORTABLE, row, EPSILON, None) for row in x])

    hidden = residual + product(attended, block.output)
    both = product(normed(hidden), block.gate_up)
    gates, ups = np.ascontiguousarray(both[:, :INNER]), np.ascontiguousarray(both[:, INNER:])
    hidden = hidden + product(library.gate(Isa.PORTABLE, gates, ups), block.down)
    return [hidden, *(product(normed(hidden), each) for each in block.projections)]


def in_float64(block: Block, residual: Floats, attended: Floats) -> list[Doubles]:
    """With activations as they are."""

    def product(x: Doubles, layer: Linear) -> Doubles:
        weights: Doubles = layer.weights.astype(np.float64) * layer.scales[:, None]
        return x @ weights.T

    def normed(x: Doubles) -> Doubles:
        scale: Doubles = np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON)
        return x / scale

    hidden = residual.astype(np.float64) + product(attended.astype(np.float64), block.output)
    gates, ups = np.split(product(normed(hidden), block.gate_up), 2, axis=1)
    hidden = hidden + product(gates / (1 + np.exp(-gates)) * ups, block.down)
    return [hidden, *(product(normed(hidden), each) for each in block.projections)]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("isa", list(Isa))
def test_it_equals_its_steps(emulated: Library, isa: Isa, last: bool) -> None:
    block, inputs = made(last=last)
    found = emulated.block(isa, *inputs, block)
    expected = step_by_step(emulated, block, *inputs)
    assert len(found) == (1 if last else 4)
    assert all(equal_bits(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("isa", list(Isa))
def test_it_equals_its_steps_with_the_instructions_of_this_machine(kernels: Library, isa: Isa) -> None:
    if not kernels.usable(isa):
        pytest.skip(f"no {isa.name} here")
    block, inputs = made()
    expected = step_by_step(kernels, block, *inputs)
    found = kernels.block(isa, *inputs, block)
    assert all(equal_bits(one, other) for one, other in zip(found, expected, strict=True))


def test_it_is_close_to_the_same_without_rounding_of_activations(kernels: Library) -> None:
    block, inputs = made()
    for found, expected in zip(kernels.block(Isa.PORTABLE, *inputs, block), in_float64(block, *inputs), strict=True):
        assert np.sqrt(np.mean((found - expected) ** 2)) <= 0.03 * expected.std()


@pytest.mark.parametrize("isa", list(Isa))
@pytest.mark.parametrize("parts", [2, 3, 7, 40])
def test_it_is_the_same_in_any_number_of_parts(emulated: Library, isa: Isa, parts: int) -> None:
    block, inputs = made()
    whole, cut = (emulated.block(isa, *inputs, block, parts=each) for each in (1, parts))
    assert all(equal_bits(one, other) for one, other in zip(whole, cut, strict=True))


@pytest.mark.parametrize("isa", list(Isa))
def test_a_row_is_the_same_beside_any_others(emulated: Library, isa: Isa) -> None:
    block, (residual, attended) = made()
    together = emulated.block(isa, residual, attended, block)
    for row in (0, 5, 69, 70, 139):
        alone = emulated.block(isa, residual[row : row + 1], attended[row : row + 1], block)
        assert all(equal_bits(one[0], other[row]) for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize("isa", list(Isa))
@pytest.mark.parametrize("at", [0, 1], ids=["residual", "attended"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_spoils_no_other(emulated: Library, isa: Isa, at: int, bad: float) -> None:
    block, inputs = made()
    expected = emulated.block(isa, *inputs, block)
    inputs[at][5, 17] = bad
    found = emulated.block(isa, *inputs, block)
    others = np.arange(ROWS) != 5
    for one, other in zip(found, expected, strict=True):
        assert np.isnan(one[5]).any()
        assert equal_bits(one[others], other[others])
