"""The one percentile rule, against values worked out by hand and against its own formula."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekiden.measure.percentiles import median, percentiles, quantiles, whole_range

VALUES = st.lists(st.integers(0, 10_000), min_size=1, max_size=150)


def test_quantiles_interpolate_between_order_statistics():
    assert quantiles([]) is None
    assert quantiles([0.0, 1.0, 2.0, 3.0]) == {
        "p50": 1.5,
        "p90": pytest.approx(2.7),
        "p95": pytest.approx(2.85),
        "p99": pytest.approx(2.97),
        "max": 3.0,
        "n": 4,
    }


@given(VALUES, st.integers(0, 100))
def test_percentiles_follow_the_formula_of_the_docstring(values, level):
    ordered, position = sorted(values), (len(values) - 1) * level / 100
    low, high = ordered[math.floor(position)], ordered[math.ceil(position)]
    expected = low + (position - math.floor(position)) * (high - low)
    assert percentiles(values, [level]) == [pytest.approx(expected)]


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 4)), min_size=1, max_size=40))
def test_a_counted_value_is_that_value_so_many_times(pairs):
    repeated = [value for value, count in pairs for _ in range(count)]
    values, counts = zip(*pairs, strict=True)
    assert percentiles(values, [10, 50, 99], counts=counts) == percentiles(repeated, [10, 50, 99])
    assert median(repeated) == percentiles(repeated, [50])[0]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([7], (7, 7, 7)),
        ([1, 2], (1, 1, 2)),
        ([3, 1, 2], (1, 2, 3)),
        (range(128), (12, 63, 115)),
        (range(11), (1, 5, 9)),
    ],
)
def test_the_whole_range_that_recorded_runs_were_scheduled_by(lengths, expected):
    assert whole_range(lengths) == expected


@given(VALUES)
def test_the_whole_range_rounds_outward_at_its_ends(values):
    low, middle, high = whole_range(values)
    p10, p50, p90 = percentiles(values, [10, 50, 90])
    slack = 1e-6
    assert low <= p10 + slack
    assert middle <= p50 + slack
    assert high >= p90 - slack
    assert {low, middle, high} <= set(values)
