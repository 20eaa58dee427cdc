"""What a step costs: a linear model of its load, fitted by least squares.

seconds ~ a + b * decode_rows + c * decode_context + d * prefill_tokens + e * prefill_pairs. No coefficient goes below
zero: no load makes a step faster. :func:`fitted` makes the model of recorded steps; :class:`StepTimeModel` learns
while serving, with forgetting, so that it follows a machine whose speed drifts. The spread of its recent
ratios of measured to predicted time turns a prediction into a range. :meth:`StepTimeModel.least` is the low end of what
is known, for those who must not call impossible what is not.
"""

from collections import Counter, deque
from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ekiden.measure.percentiles import percentiles
from ekiden.state.plan import BatchPlan
from ekiden.state.policy import StepLoad, TimeRange

Vector = npt.NDArray[np.float64]

_SCALES: Vector = np.array((1.0, 32.0, 8_000.0, 128.0, 60_000.0))
"""Divisors that bring the features near 1, so that one ridge suits all."""
_FORGETTING = 0.99
_RIDGE = 0.01
"""How strongly coefficients that the recent steps do not determine are held at their last values."""
_RIDGE_MATRIX = _RIDGE * np.eye(len(_SCALES))
_SMALL_RIDGE = 1e-9 * np.eye(len(_SCALES))
"""Added for each recorded step: it settles coefficients that no step determines, and hardly changes the others."""
_LEARNING_STEPS = 12
"""Steps at the beginning whose errors say nothing of how the model errs later."""
_SETTLED_STEPS = 24
"""Steps before which nothing is said of how long a step takes at least."""
_USUAL_STEPS = 24
"""So many steps of a kind (with prompts, or without) must be known before one that took longer is left out."""
_P10 = 1.2816
"""Standard deviations from the median of a normal distribution to its p10."""
_LEAST_ERROR = 1e-3
_LEAST_ERROR_SHARE = 0.05
"""Seconds, and part of a mean step, by which a prediction is thought to err at least. With the ridge that makes the
guess of a cost that no step has shown yet worth nothing: its doubt is larger than the guess."""
_EAGER_STEPS = 64
"""Steps after each of which the model is solved anew; later after every fourth."""


def load_of(plan: BatchPlan) -> StepLoad:
    """The load of a plan. A decode row with drafts counts as a row for each of its tokens."""
    decode_rows = decode_context = prefill_tokens = prefill_pairs = 0
    for row in plan.rows:
        count = len(row.token_ids)
        if row.prefill:
            prefill_tokens += count
            prefill_pairs += count * (row.start + count // 2)
        else:
            decode_rows += count
            decode_context += count * row.start + count * (count - 1) // 2
    return StepLoad(decode_rows, decode_context, prefill_tokens, prefill_pairs)


class StepCost(NamedTuple):
    """Seconds for a step, and for each unit of its load. They are plain numbers, because every step is predicted."""

    step: float
    decode_row: float
    decode_context: float
    prefill_token: float
    prefill_pair: float

    def seconds(self, load: StepLoad) -> float:
        decodes = self.step + self.decode_row * load.decode_rows + self.decode_context * load.decode_context
        return decodes + self.prefill_token * load.prefill_tokens + self.prefill_pair * load.prefill_pairs

    def prefill_seconds(self, load: StepLoad) -> float:
        return self.prefill_token * load.prefill_tokens + self.prefill_pair * load.prefill_pairs


_PRIOR = StepCost(0.005, 0.002, 2e-6, 0.002, 1e-7)
"""The costs before anything is measured are those of a slow machine, so that the first chunks are small."""


def fitted(loads: Sequence[StepLoad], seconds: Sequence[float]) -> StepCost:
    """The costs that predict the measured times of some steps best; all zero without steps."""
    features = np.array([_features(load) for load in loads]).reshape(-1, len(_SCALES))
    matrix: Vector = features.T @ features + max(1, len(loads)) * _SMALL_RIDGE
    return _cost(_solve(matrix, features.T @ np.array(seconds)))


def usual(loads: Sequence[StepLoad], longer: Sequence[bool]) -> list[int]:
    """The indices of the steps that a fit is to learn from.

    Those that took ``longer`` for a reason that does not return are left out, unless there are too few others of their
    kind: with one client, say, each prompt is of a size that never was, and nothing else tells what prompts cost.
    """
    plain = Counter(load.prefill_tokens > 0 for load, once in zip(loads, longer, strict=True) if not once)
    scarce = {kind for kind in (False, True) if plain[kind] < _USUAL_STEPS}
    return [i for i, load in enumerate(loads) if not longer[i] or (load.prefill_tokens > 0) in scarce]


def _features(load: StepLoad) -> Vector:
    raw = (1.0, load.decode_rows, load.decode_context, load.prefill_tokens, load.prefill_pairs)
    features: Vector = np.array(raw, np.float64) / _SCALES
    return features


def _solve(matrix: Vector, target: Vector) -> Vector:
    """Least squares by the normal equations; what would fall below zero is held at zero."""
    weights: Vector = np.linalg.solve(matrix, target).astype(np.float64, copy=False)
    free = np.ones(len(_SCALES), bool)
    while (weights < 0.0).any():
        free &= weights > 0.0
        weights = np.zeros(len(_SCALES))
        weights[free] = np.linalg.solve(matrix[np.ix_(free, free)], target[free])
    return weights


def _cost(weights: Vector) -> StepCost:
    return StepCost(*(weights / _SCALES).tolist())


class StepTimeModel:
    def __init__(self) -> None:
        self._weights: Vector = np.array(_PRIOR) * _SCALES
        self._cost = _cost(self._weights)
        self._gram: Vector = np.zeros((len(_SCALES), len(_SCALES)))
        self._moment: Vector = np.zeros(len(_SCALES))
        self._ratios: deque[float] = deque(maxlen=128)
        self._spread = [0.5, 1.0, 2.0]
        self._squares = self._errors = self._seconds = 0.0
        """Of recent steps, with forgetting: the squared errors of their predictions, their number, and their time."""
        self._doubt: Vector | None = None
        """How uncertain the costs are: the inverse of what was seen of each load; None until it is needed again."""
        self._usual: Counter[bool] = Counter()
        """Steps with prompts, and without, that were learned from and did not take longer, once."""
        self.observed = 0

    def _point(self, load: StepLoad) -> float:
        return max(1e-4, self._cost.seconds(load))

    def predict(self, load: StepLoad) -> TimeRange:
        point = self._point(load)
        return TimeRange(*(point * ratio for ratio in self._spread))

    def least(self, load: StepLoad) -> float:
        """Seconds that such a step takes at least, nine times out of ten.

        From the predicted time it takes what steps vary, and what the costs themselves are uncertain by for this load
        (the standard error of a prediction by least squares). So a load unlike any that was seen may take no time, as
        far as anybody knows, and so may every load while too few steps were seen.
        """
        if self.observed < _SETTLED_STEPS:
            return 0.0
        doubt: Vector | None = self._doubt
        if doubt is None:
            doubt = self._doubt = np.linalg.inv(self._gram + _RIDGE_MATRIX).astype(np.float64, copy=False)
        features = _features(load)
        least = max(_LEAST_ERROR, _LEAST_ERROR_SHARE * self._seconds / self._errors)
        error = max(least, sqrt(self._squares / self._errors))
        uncertain = _P10 * error * sqrt(max(0.0, float(features @ doubt @ features)))
        return max(0.0, self._cost.seconds(load) * min(1.0, self._spread[0]) - uncertain)

    def prefill_share(self, load: StepLoad) -> float:
        """The part of the predicted time that is due to the prefill chunks, 0 to 1."""
        if load.prefill_tokens == 0:
            return 0.0
        return min(1.0, self._cost.prefill_seconds(load) / self._point(load))

    def observe(self, load: StepLoad, seconds: float, *, longer: bool = False) -> None:
        """Learn from a measured step. One that took ``longer`` for a reason that does not return is passed over, once
        enough others of its kind are known (see :func:`usual`)."""
        kind = load.prefill_tokens > 0
        if longer and self._usual[kind] >= _USUAL_STEPS:
            return
        self._usual[kind] += not longer
        features = _features(load)
        if self.observed >= _LEARNING_STEPS:
            point = self._point(load)
            self._ratios.append(seconds / point)
            self._squares = self._squares * _FORGETTING + (seconds - point) ** 2
            self._errors = self._errors * _FORGETTING + 1.0
            self._seconds = self._seconds * _FORGETTING + seconds
        self._gram *= _FORGETTING
        self._gram += features[:, None] * features
        self._moment *= _FORGETTING
        self._moment += features * seconds
        self.observed += 1
        if self.observed <= _EAGER_STEPS or self.observed % 4 == 0:
            self._weights = _solve(self._gram + _RIDGE_MATRIX, self._moment + _RIDGE * self._weights)
            self._cost = _cost(self._weights)
            self._doubt = None
        if self._ratios and self.observed % 8 == 0:
            self._spread = percentiles(self._ratios, (10, 50, 90))
