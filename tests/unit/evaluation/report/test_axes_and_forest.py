import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ekiden.evaluation.outcome import Comparison, Phase
from ekiden.evaluation.report.axes import Axis, linear, logarithmic
from ekiden.evaluation.report.forest import WIDTH, forests
from tests.unit.evaluation.report.sample import apart, compared, counted, metric

VALUES = st.lists(st.floats(-1e9, 1e9, allow_nan=False), max_size=20)


@given(VALUES, st.booleans())
@example([5e-324], True)
@example([0.0, 5e-323], False)
@example([0.0, 1e-310], False)
def test_an_axis_holds_its_values_and_has_ticks_in_order(values, log):
    axis = logarithmic(values) if log else linear(values)
    assert axis.low < axis.high
    assert all(0 <= axis.share(value) <= 1 for value in values)
    places = [tick.at for tick in axis.ticks()]
    assert places == sorted(places)
    assert 1 <= len(places) <= 9
    assert all(0 <= place <= 1 for place in places)


def test_a_logarithmic_axis_gives_each_power_as_much_room():
    axis = Axis(low=0.01, high=100.0, log=True)
    assert [axis.share(value) for value in (0.01, 0.1, 1.0, 10.0, 100.0)] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert axis.share(0.0) == axis.share(-3.0) == 0.0
    assert [tick.text for tick in axis.ticks()] == ["0.01", "0.1", "1", "10", "100"]


def test_intervals_and_conditions_lie_on_one_axis():
    judged = {"success": "result >= 1.1", "failure": "result < 1.0"}
    wide, narrow = forests(
        [
            metric("goodput", "w", "static", compared(2.0, math.log(1.25), 1.0), Phase.SUCCESSFUL, **judged),
            metric("goodput", "w", "window", compared(1.0, math.log(1.1), 1.0), Phase.INCONCLUSIVE, **judged),
        ]
    )
    assert wide.equal == narrow.equal == pytest.approx(WIDTH / 2)
    assert narrow.ratio == narrow.equal
    assert narrow.left is not None
    assert narrow.right is not None
    assert narrow.equal is not None
    assert wide.left is not None
    assert narrow.left < narrow.equal < narrow.right < wide.left
    success, failure = wide.strips
    assert (success.kind, failure.kind) == ("success", "failure")
    assert success.end == WIDTH
    assert (failure.start, failure.end) == (0.0, wide.equal)
    assert success.start == max(wide.thresholds) == pytest.approx(narrow.right)  # 1.1, all three


def test_what_is_not_estimable_is_not_drawn_and_what_lies_beyond_is_an_arrow():
    nothing = Comparison(ratio=None, low=None, high=None, blocks=3, candidate=None, baseline=None)
    bounded = Comparison(ratio=1.1, low=0.9, high=None, blocks=3, candidate=None, baseline=None)
    missing, far, open_end = forests(
        [
            metric("goodput", "w", "static", nothing, Phase.ERROR, success="result >= 1.1"),
            metric("goodput", "w", "static", compared(0.01, 0.1, 1.0), Phase.SUCCESSFUL),
            metric("goodput", "w", "static", bounded, Phase.SUCCESSFUL),
        ]
    )
    assert (missing.ratio, missing.left, missing.right) == (None, None, None)
    assert far.ratio is None
    assert far.goes_on_left
    assert not far.goes_on_right
    assert (open_end.goes_on_left, open_end.goes_on_right, open_end.right) == (False, True, WIDTH)


def test_a_condition_in_words_is_printed_and_not_drawn():
    (drawn,) = forests([metric("x", "w", "static", compared(1.0, 0.1, 1.0), Phase.SUCCESSFUL, success="within 5%")])
    assert drawn.strips == []


def test_a_difference_is_drawn_around_zero_on_the_axis_of_its_metric():
    limits = {"success": "result <= 0.01", "failure": "result > 0.01", "unit": "share"}
    small, wide = forests(
        [
            metric("errors", "w", "static", apart(0.005, 0.0, 0.008), Phase.SUCCESSFUL, **limits),
            metric("attainment_gap", "w", "static", apart(-0.4, -0.6, -0.2), Phase.SUCCESSFUL, unit="share"),
        ]
    )
    assert small.equal == wide.equal == pytest.approx(WIDTH / 2)
    assert small.left == small.equal
    assert small.ratio is not None
    assert small.equal is not None
    assert wide.right is not None
    assert wide.equal is not None
    assert small.equal < small.ratio < small.thresholds[0] < WIDTH  # the other metric does not shrink it
    assert wide.right < wide.equal
    assert [tick.text for tick in wide.ticks] == ["−50", "−25", "0", "+25", "+50"]  # percentage points


def test_a_share_of_both_arms_has_no_line_of_equality():
    (drawn,) = forests(
        [metric("tokens_equal", "w", "static", counted(1.0), Phase.SUCCESSFUL, success="result >= 1", unit="share")]
    )
    assert drawn.equal is None
    assert drawn.ratio == drawn.thresholds[0] < WIDTH
    assert drawn.strips[0].end == WIDTH
    assert drawn.ticks[-1].text == "100%"


def test_the_ratios_of_another_metric_do_not_widen_the_axis():
    judged = {"success": "result >= 1.1"}
    near, _ = forests(
        [
            metric("goodput", "w", "static", compared(1.05, 0.0, 1.0), Phase.INCONCLUSIVE, **judged),
            metric("ttft_p99", "w", "static", compared(0.12, 0.0, 1.0), Phase.SUCCESSFUL, **judged),
        ]
    )
    assert near.thresholds[0] - WIDTH / 2 > WIDTH / 10
