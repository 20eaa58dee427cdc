"""Rotations: orthogonal for any width, cheap for wide ones; what they make of a model computes the same."""

import math

import numpy as np
import pytest

from ekiden.backends.openvino.weights.rotated import BOUND
from ekiden.backends.openvino.weights.rotation import Rotation, factor_sizes

WIDTHS = [2, 3, 64, 67, 80, 576, 896]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_rotation_is_orthogonal_and_mixes_every_channel(width: int) -> None:
    matrix = Rotation(width).rows(np.eye(width, dtype=np.float32))
    assert np.abs(matrix @ matrix.T - np.eye(width)).max() < 1e-5
    # A channel that sticks out is spread: no other gets more than twice its even share.
    assert np.abs(matrix).max() <= 2 / math.sqrt(width) + 1e-5


@pytest.mark.parametrize("width", WIDTHS)
def test_columns_and_back_are_its_transpose(width: int) -> None:
    rotation = Rotation(width)
    matrix = rotation.rows(np.eye(width, dtype=np.float32))
    x = np.random.default_rng(0).standard_normal((5, width)).astype(np.float32)
    assert np.allclose(rotation.rows(x), x @ matrix, atol=1e-5)
    assert np.allclose(rotation.columns(np.ascontiguousarray(x.T)), matrix.T @ x.T, atol=1e-5)
    assert np.allclose(rotation.back(rotation.rows(x)), x, atol=1e-5)
    assert rotation.back(x[2:3]).tobytes() == rotation.back(x)[2:3].tobytes()


def test_many_rows_are_rotated_as_one_is() -> None:
    x = np.random.default_rng(0).standard_normal((5000, 6)).astype(np.float32)
    rotation = Rotation(6)
    assert np.allclose(rotation.rows(x)[4999], rotation.rows(x[4999]), atol=1e-6)


@pytest.mark.parametrize(
    ("width", "sizes"), [(576, [64, 9]), (5120, [64, 16, 5]), (4095, [45, 7, 13]), (1153, [1153]), (1, [])]
)
def test_factors_stay_small_where_the_width_allows(width: int, sizes: list[int]) -> None:
    assert factor_sizes(width) == sizes


def test_the_constant_range_is_where_a_gaussian_loses_least() -> None:
    x = np.random.default_rng(0).standard_normal(200_000)

    def error(bound: float) -> float:
        step = bound / 127
        return float(((np.clip(np.rint(x / step), -127, 127) * step - x) ** 2).mean())

    assert min((3.0, 3.5, BOUND, 4.5, 5.0), key=error) == BOUND
