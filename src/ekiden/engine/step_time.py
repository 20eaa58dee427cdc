"""What a step costs, learnt while serving: a linear model of its load, fitted by least squares with forgetting.

seconds ~ a + b * decode_rows + c * decode_context + d * prefill_tokens + e * prefill_pairs, with forgetting, so that
it follows a machine whose speed drifts. The spread of recent ratios measured / predicted makes the point a range.
No coefficient goes below zero: no load makes a step faster.
"""

from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ekiden.measure.percentiles import percentiles
from ekiden.state.plan import BatchPlan
from ekiden.state.policy import StepLoad, TimeRange

# Before anything is measured: a slow machine, so that the first chunks are small. Seconds for each unit of the load.
_PRIOR = (0.005, 0.002, 2e-6, 0.002, 1e-7)
# Scales that bring the features near 1, so that one starting variance fits all.
_SCALES = (1.0, 32.0, 8_000.0, 128.0, 60_000.0)
_FORGETTING = 0.99
# How firmly a direction that no recent step showed is held at its last value.
_RIDGE = 0.01
_RIDGE_MATRIX = _RIDGE * np.eye(len(_SCALES))
_LEARNING_STEPS = 12
"""Steps at the beginning whose errors say nothing of how the model errs later."""
_EAGER_STEPS = 64
"""Steps after each of which the model is solved anew; later after every fourth."""


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


Vector = npt.NDArray[np.float64]


class StepTimeModel:
    def __init__(self, prior: Iterable[float] = _PRIOR, history: int = 128) -> None:
        self._scales = np.array(_SCALES)
        self._weights = np.array(tuple(prior)) * self._scales
        self._per_unit = self._plain()
        self._gram: Vector = np.zeros((len(_SCALES), len(_SCALES)))
        self._moment: Vector = np.zeros(len(_SCALES))
        self._ratios: deque[float] = deque(maxlen=history)
        self._spread = (0.5, 1.0, 2.0)
        self.observed = 0

    def _features(self, load: StepLoad) -> Vector:
        raw = (1.0, load.decode_rows, load.decode_context, load.prefill_tokens, load.prefill_pairs)
        features: Vector = np.array(raw) / self._scales
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

    def _solve(self) -> Vector:
        """Weighted least squares towards the last weights; what would fall below zero is held at zero."""
        matrix = self._gram + _RIDGE_MATRIX
        target = self._moment + _RIDGE * self._weights
        weights: Vector = np.linalg.solve(matrix, target)
        free = np.ones(len(_SCALES), bool)
        while (weights < 0.0).any():
            free &= weights > 0.0
            weights = np.zeros(len(_SCALES))
            weights[free] = np.linalg.solve(matrix[np.ix_(free, free)], target[free])
        return weights

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a measured step."""
        features = self._features(load)
        if self.observed >= _LEARNING_STEPS:
            self._ratios.append(seconds / self._point(load))
        self._gram *= _FORGETTING
        self._gram += features[:, None] * features
        self._moment *= _FORGETTING
        self._moment += features * seconds
        self.observed += 1
        if self.observed <= _EAGER_STEPS or self.observed % 4 == 0:
            self._weights = self._solve()
            self._per_unit = self._plain()
        if self._ratios and self.observed % 8 == 0:
            low, middle, high = percentiles(self._ratios, (10, 50, 90))
            self._spread = (low, middle, high)
