"""The one percentile rule of every figure, range and view: linear interpolation between order statistics.

With the n values in order x[0] <= ... <= x[n - 1], percentile p lies at position h = (n - 1) * p / 100. It is x[h]
where h is whole, else on the straight line between its neighbours: x[i] + (h - i) * (x[i + 1] - x[i]), i = floor(h).
This is numpy's default, type 7 of Hyndman and Fan (1996).

A p99 needs 299 values for a one-sided 95 % bound, a p99.9 2,995: the smallest n for which 0.99 ** n, or 0.999 ** n, is
at most 5 %, so that the largest value lies above the percentile with 95 % certainty. With fewer a table says "not
estimable", and only the JSON of `bench` carries the sample's value.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

LEVELS = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}
MIN_VALUES_FOR_P99 = 299
MIN_VALUES_FOR_P999 = 2_995


def percentiles(values: npt.ArrayLike, levels: Sequence[float], *, counts: npt.ArrayLike | None = None) -> list[float]:
    """The percentiles of one value or more; with ``counts`` each value counts so many times."""
    repeated = values if counts is None else np.repeat(np.asarray(values), np.asarray(counts))
    found: list[float] = np.percentile(np.asarray(repeated, np.float64), levels).tolist()
    return found


def median(values: npt.ArrayLike) -> float:
    """Percentile 50."""
    return percentiles(values, [50.0])[0]


def quantiles(values: Iterable[float]) -> dict[str, float | int] | None:
    """``p50, p90, p95, p99, max`` and ``n`` of the values; None when there are none."""
    array = np.fromiter(values, dtype=np.float64)
    if array.size == 0:
        return None
    points = percentiles(array, list(LEVELS.values()))
    return dict(zip(LEVELS, points, strict=True)) | {"max": float(array.max()), "n": int(array.size)}


def whole_range(lengths: Iterable[int]) -> tuple[int, int, int]:
    """A range of whole numbers that holds p10, p50 and p90: where the position h above lies between two values, the
    lower one is taken for p10 and p50, the upper one for p90, so that nothing is interpolated.

    Scheduling decisions depend on it, so recorded runs replay only as long as it stays as it is.
    """
    ordered = sorted(lengths)
    last = len(ordered) - 1
    return ordered[last // 10], ordered[last // 2], ordered[-(-last * 9 // 10)]
