import math

import msgspec
import pytest

from ekiden.evaluation.report.numbers import Numbers
from ekiden.evaluation.report.words import words
from tests.unit.evaluation.report.sample import apart, compared, counted

N = Numbers(words("en"))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.1234, "s", "123 ms"),
        (1.236, "s", "1.24 s"),
        (0.0, "s", "0 s"),
        (0.97, "share", "97%"),
        (0.99951, "share", "99.95%"),
        (0.0000123, "", "1.23e-05"),
        (12345.6, "tokens/s", "12,346 tokens/s"),
        (100.0, "", "100"),
        (-0.5, "", "-0.5"),
        (math.inf, "", "∞"),
        (None, "s", "not estimable"),
        (math.nan, "s", "not estimable"),
    ],
)
def test_a_figure_with_its_unit(value, unit, text):
    assert N.of(value, unit) == text


def test_ratios_and_intervals():
    assert N.ratio(1.2) == "1.200×"
    assert N.ratio(0.0001234) == "0.000123×"
    assert N.ratio(None) == "not estimable"
    assert N.interval(0.9, 1.1) == "0.900 … 1.100"
    assert N.interval(0.9, None) == "0.900 … ∞"
    assert N.interval(None, 1.1) == "−∞ … 1.100"
    assert N.interval(None, None) == "not estimable"


def test_a_difference_is_written_with_its_sign_in_the_unit_of_its_figure():
    assert N.difference(0.4686, "share") == "+46.9 pp"
    assert N.difference(-0.004, "share") == "−0.4 pp"
    assert N.difference(0.0, "share") == "0 pp"
    assert N.difference(-0.012, "s") == "−12 ms"
    assert N.difference(2.0, "per request") == "+2 per request"
    assert N.difference(None, "share") == "not estimable"
    assert Numbers(words("ja")).difference(0.4686, "share") == "+46.9 ポイント"


def test_a_result_is_written_by_its_scale():
    ratio, difference, share = compared(2.0, 0.0, 1.0), apart(0.4686, 0.36, 0.577), counted(0.975)
    assert [N.result(each, "share") for each in (ratio, difference, share)] == ["2.000×", "+46.9 pp", "97.5%"]
    assert N.result_interval(difference, "share") == "+36 … +57.7 pp"
    assert N.result_interval(apart(-0.02, -0.04, 0.0), "s") == "−40 ms … 0 s"
    assert N.result_interval(ratio, "share") == "2.000 … 2.000"
    assert N.result_interval(share, "share") == ""  # counted: there is no chance about it
    open_end = msgspec.structs.replace(difference, high=None)
    assert N.result_interval(open_end, "share") == "+36 … ∞"
    nothing = msgspec.structs.replace(difference, ratio=None, low=None, high=None)
    assert (N.result(nothing, "share"), N.result_interval(nothing, "share")) == ("not estimable", "not estimable")


def test_whatever_others_put_into_a_table():
    assert N.plain({"threads": 1, "on": True, "of": None}) == "threads = 1, on = yes, of = not measured"
    assert N.plain([1, 2.5, "x"]) == "1, 2.5, x"
    assert N.plain({}) == N.plain([]) == "none"
    assert N.plain(24_696_061_952) == "24,696,061,952"
    assert Numbers(words("ja")).plain(None) == "測定していない"
