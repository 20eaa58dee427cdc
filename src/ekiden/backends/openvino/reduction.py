"""The sampler's reduction as a small compiled model of its own, which runs only when some row draws its token.

It reads the logits where the language model left them. Its two outputs are small: maxima and sums by group.
"""

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import Type
from openvino import opset13 as op

from ekiden.sampling.reduction import GROUP_SIZE, FloatMatrix, Reduced


class OpenVINOReducer:
    """A :class:`ekiden.sampling.reduction.Reducer` on the CPU plugin with ``threads`` threads."""

    def __init__(self, core: ov.Core, threads: int) -> None:
        properties = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": str(threads)}
        self._request = core.compile_model(_model(), "CPU", properties).create_infer_request()

    def reduce(self, logits: FloatMatrix, inverse_temperatures: npt.NDArray[np.float32]) -> Reduced:
        request = self._request
        rows = len(logits)
        inputs = [logits.reshape(rows, -1, GROUP_SIZE), inverse_temperatures.reshape(rows, 1, 1)]
        for index, array in enumerate(inputs):
            request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
        request.infer(share_outputs=True)
        return Reduced(request.get_output_tensor(0).data, request.get_output_tensor(1).data)


def _model() -> ov.Model:
    """``[rows, groups, GROUP_SIZE]`` logits and ``[rows, 1, 1]`` inverse temperatures to two ``[rows, groups]``."""
    logits = op.parameter([-1, -1, GROUP_SIZE], Type.f32, name="logits")
    inverse = op.parameter([-1, 1, 1], Type.f32, name="inverse_temperatures")
    inside, across = op.constant(np.array([2], np.int64)), op.constant(np.array([1], np.int64))
    maxima = op.reduce_max(logits, inside, False)
    highest = op.unsqueeze(op.reduce_max(maxima, across, True), op.constant(np.int64(2)))
    weights = op.exp(op.multiply(op.subtract(logits, highest), inverse))
    outputs = [op.result(maxima), op.result(op.reduce_sum(weights, inside, False))]
    return ov.Model(outputs, [logits, inverse], "reduction")
