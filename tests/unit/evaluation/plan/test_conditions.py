"""Conditions are ranges: what holds for an interval holds for each number of it."""

import contextlib
import math
import operator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ekiden.evaluation.plan.conditions import Condition, ConditionError

SIGNS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt, "==": operator.eq}
# Few numbers, so that ends are met exactly.
NUMBERS = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 0.95, 1.0, 1.1, 2.0])
COMPARISONS = st.tuples(st.sampled_from(sorted(SIGNS)), NUMBERS)


def written(comparisons, joint=" && "):
    return joint.join(f"result {sign} {number}" for sign, number in comparisons)


def read(comparisons, joint=" && "):
    """The condition; an example in which nothing meets it is left out."""
    try:
        return Condition.parse(written(comparisons, joint))
    except ConditionError as error:
        assume("no number meets" not in str(error))
        raise


@given(st.lists(COMPARISONS, min_size=1, max_size=3), NUMBERS, st.sampled_from([" && ", "&&", " and "]))
def test_a_number_meets_a_condition_when_it_meets_every_comparison(comparisons, value, joint):
    meets = all(SIGNS[sign](value, number) for sign, number in comparisons)
    assert read(comparisons, joint).holds(value) == meets


@given(st.lists(COMPARISONS, min_size=1, max_size=2), NUMBERS, NUMBERS)
def test_an_interval_is_judged_as_its_numbers_are(comparisons, one, other):
    low, high = min(one, other), max(one, other)
    condition = read(comparisons)
    within = [min(high, low + (high - low) * share / 64) for share in range(65)]  # rounding may lead beyond
    holding = [condition.holds(value) for value in within]
    judged = condition.holds_for_all(low, high)
    if judged is None:
        # Undecided needs two numbers at least, and not all of one kind; the range may lie between those tried here.
        assert low < high
        assert not all(holding)
    else:
        assert holding == [judged] * 65


@given(st.lists(COMPARISONS, min_size=1, max_size=2), st.lists(COMPARISONS, min_size=1, max_size=2))
def test_conditions_overlap_when_their_conjunction_can_be_met(one, other):
    first, second = read(one), read(other)
    try:
        Condition.parse(written([*one, *other]))
        both = True
    except ConditionError:
        both = False
    assert first.overlaps(second) == second.overlaps(first) == both


def test_an_unknown_end_goes_on_without_end():
    condition = Condition.parse("result >= 1.1")
    assert condition.holds_for_all(1.2, None) is True
    assert condition.holds_for_all(None, 1.2) is None
    assert condition.holds_for_all(None, 1.0) is False
    assert condition.holds_for_all(None, None) is None
    assert condition.holds_for_all(1.2, math.inf) is True


@pytest.mark.parametrize("ends", [(2.0, 1.0), (math.nan, 1.0), (0.0, math.nan)])
def test_what_is_no_interval_is_an_error(ends):
    with pytest.raises(ValueError, match="is none"):
        Condition.parse("result > 0").holds_for_all(*ends)


def test_nan_meets_nothing():
    assert not Condition.parse("result < 5").holds(math.nan)


@pytest.mark.parametrize(
    "text",
    [
        "", "result", "result >=", "result != 1", "x > 1", "1 < result", "result > 1 or result < 0", "result > 1 &&",
        "result > 1e999", "result > nan", "result > __import__('os')", "result > 1; result", "result >= 1,1",
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_a_way_out(text):
    with pytest.raises(ConditionError, match="write such as `result >= 1.1`"):
        Condition.parse(text)


def test_a_condition_that_nothing_meets_is_refused():
    with pytest.raises(ConditionError, match="no number meets"):
        Condition.parse("result > 1.1 and result < 1")


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(ConditionError):
        Condition.parse(text)
