"""What a step costs, learnt while serving: a linear model of its load, fitted by recursive least squares.

seconds ~ a + b * decode_rows + c * decode_context + d * prefill_tokens + e * prefill_pairs, with forgetting, so that
it follows a machine whose speed drifts. The spread of recent ratios measured / predicted makes the point a range.
No coefficient goes below zero: no load makes a step faster.
"""

from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ekiden.state.plan import BatchPlan
from ekiden.state.policy import StepLoad, TimeRange

# Before anything is measured: a slow machine, so that the first chunks are small. Seconds for each unit of the load.
_PRIOR = (0.005, 0.002, 2e-6, 0.002, 1e-7)
# Scales that bring the features near 1, so that one starting variance fits all.
_SCALES = (1.0, 32.0, 8_000.0, 128.0, 60_000.0)
_FORGETTING = 0.99
# How little the prior is trusted: a machine five times as fast is believed after a few steps of a kind.
_FIRST_VARIANCE = 5.0
_MOST_VARIANCE = 25.0
_LEARNING_STEPS = 12
"""Steps at the beginning whose errors say nothing of how the model errs later."""


def load_of(plan: BatchPlan) -> StepLoad:
    """The load of a plan that has not been applied yet."""
    decode_rows = decode_context = prefill_tokens = prefill_pairs = 0
    for sequence, count in zip(plan.sequences, plan.num_tokens, strict=True):
        computed = sequence.num_computed_tokens
        if sequence.is_prefilling:
            prefill_tokens += count
            prefill_pairs += count * (computed + count // 2)
        else:
            decode_rows += 1
            decode_context += computed
    return StepLoad(
        decode_rows=decode_rows,
        decode_context=decode_context,
        prefill_tokens=prefill_tokens,
        prefill_pairs=prefill_pairs,
    )


class StepTimeModel:
    def __init__(self, prior: Iterable[float] = _PRIOR, history: int = 128) -> None:
        self._scales = np.array(_SCALES)
        self._weights = np.array(tuple(prior)) * self._scales
        self._per_unit = self._plain()
        self._covariance: npt.NDArray[np.float64] = np.eye(len(_SCALES)) * _FIRST_VARIANCE
        self._ratios: deque[float] = deque(maxlen=history)
        self._spread = (0.5, 1.0, 2.0)
        self.observed = 0

    def _features(self, load: StepLoad) -> npt.NDArray[np.float64]:
        raw = (1.0, load.decode_rows, load.decode_context, load.prefill_tokens, load.prefill_pairs)
        features: npt.NDArray[np.float64] = np.array(raw) / self._scales
        return features

    def _plain(self) -> list[float]:
        """Seconds for each unit of the load. Plain numbers: predicting is on every step's way."""
        per_unit: list[float] = (self._weights / self._scales).tolist()
        return per_unit

    def _point(self, load: StepLoad) -> float:
        base, row, context, token, pair = self._per_unit
        seconds = base + row * load.decode_rows + context * load.decode_context
        return max(1e-4, seconds + token * load.prefill_tokens + pair * load.prefill_pairs)

    def predict(self, load: StepLoad) -> TimeRange:
        point = self._point(load)
        low, middle, high = self._spread
        return TimeRange(point * low, point * middle, point * high)

    def prefill_share(self, load: StepLoad) -> float:
        """How much of the predicted time is owed to the prefill chunks, 0 to 1."""
        if load.prefill_tokens == 0:
            return 0.0
        *_, token, pair = self._per_unit
        return min(1.0, (token * load.prefill_tokens + pair * load.prefill_pairs) / self._point(load))

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a measured step."""
        features = self._features(load)
        if self.observed >= _LEARNING_STEPS:
            self._ratios.append(seconds / self._point(load))
        gain = self._covariance @ features
        gain /= _FORGETTING + float(features @ gain)
        # Brought back to zero at once, so that what moves along with it (rows and their context) makes up for it.
        self._weights = np.maximum(self._weights + gain * (seconds - float(features @ self._weights)), 0.0)
        self._per_unit = self._plain()
        covariance = (self._covariance - np.outer(gain, features @ self._covariance)) / _FORGETTING
        # Directions that are never excited would grow without end under forgetting.
        self._covariance = covariance * min(1.0, _MOST_VARIANCE / float(np.trace(covariance)))
        self.observed += 1
        if self._ratios and self.observed % 8 == 0:
            low, middle, high = np.percentile(self._ratios, (10, 50, 90))
            self._spread = (float(low), float(middle), float(high))
