"""The sampler's reduction as a small compiled model, which runs only when a row draws its token at random.

It reads the logits where the language model wrote them. Its two outputs are small: each group's maximum and sum.
"""

import numpy as np
import openvino as ov
from openvino import Type
from openvino import opset13 as op

from ekiden.backends.openvino import machine
from ekiden.sampling.reduction import GROUP_SIZE, FloatMatrix, FloatRow, Reduced


class OpenVINOReducer:
    """A :data:`ekiden.sampling.reduction.Reducer` on the CPU plugin, with ``threads`` threads."""

    def __init__(self, core: ov.Core, threads: int) -> None:
        properties = {"INFERENCE_PRECISION_HINT": "f32", **machine.cpu_properties(threads)}
        self._request = core.compile_model(_model(), "CPU", properties).create_infer_request()

    def __call__(self, logits: FloatMatrix, inverse_temperatures: FloatRow) -> Reduced:
        request = self._request
        rows = len(logits)
        inputs = [logits.reshape(rows, -1, GROUP_SIZE), inverse_temperatures.reshape(rows, 1, 1)]
        for index, array in enumerate(inputs):
            request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
        request.infer(share_outputs=True)
        return Reduced(request.get_output_tensor(0).data, request.get_output_tensor(1).data)


def _model() -> ov.Model:
    """Maxima and sums ``[rows, groups]`` of logits ``[rows, groups, GROUP_SIZE]`` at temperatures ``[rows, 1, 1]``."""
    logits = op.parameter([-1, -1, GROUP_SIZE], Type.f32, name="logits")
    inverse = op.parameter([-1, 1, 1], Type.f32, name="inverse_temperatures")
    within_groups, over_groups = op.constant(np.array([2], np.int64)), op.constant(np.array([1], np.int64))
    maxima = op.reduce_max(logits, within_groups, False)
    highest = op.unsqueeze(op.reduce_max(maxima, over_groups, True), op.constant(np.int64(2)))
    weights = op.exp(op.multiply(op.subtract(logits, highest), inverse))
    outputs = [op.result(maxima), op.result(op.reduce_sum(weights, within_groups, False))]
    return ov.Model(outputs, [logits, inverse], "reduction")
