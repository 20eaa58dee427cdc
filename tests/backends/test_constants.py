"""Sharing constants: fewer nodes, the same values."""

import numpy as np
import openvino as ov
from openvino import Type
from openvino import opset13 as op

from ekiden.backends.openvino.constants import share_small_constants


def repeating(layers: int) -> ov.Model:
    x = op.parameter([-1, 4], Type.f32)
    y = x
    for layer in range(layers):
        y = op.reshape(y, op.constant(np.array([0, 4], np.int64)), True)
        y = op.multiply(y, op.constant(np.float32(3.0)))
        y = op.add(y, op.constant(np.full((32, 4), layer % 2, np.float32)))
    return ov.Model([op.result(y)], [x], "repeating")


def computed(model: ov.Model) -> np.ndarray:
    values = np.linspace(-1, 1, 128, dtype=np.float32).reshape(32, 4)
    return np.array(ov.Core().compile_model(model, "CPU")([values])[0])


def constants(model: ov.Model) -> list[tuple[str, list[int]]]:
    return [
        (node.get_element_type().get_type_name(), list(node.shape))
        for node in model.get_ops()
        if node.get_type_name() == "Constant"
    ]


def test_equal_small_constants_become_one_and_large_ones_stay():
    before, model = computed(repeating(6)), repeating(6)
    assert len(constants(model)) == 18
    share_small_constants(model)
    assert sorted(constants(model)) == sorted([("i64", [2]), ("f32", []), *[("f32", [32, 4])] * 6])
    assert np.array_equal(computed(model), before)


def test_a_type_or_a_shape_of_its_own_keeps_a_constant_apart():
    x = op.parameter([-1, 4], Type.f32)
    y = op.multiply(op.add(x, op.constant(np.float32(0))), op.constant(np.zeros(1, np.float32)))
    y = op.reduce_sum(y, op.constant(np.int32(0)), False)
    model = ov.Model([op.result(y)], [x], "zeros")
    share_small_constants(model)
    assert len(constants(model)) == 3
