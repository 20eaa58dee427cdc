"""The figures that describe a workload, against those worked out by hand."""

import pytest

from ekiden.evaluation.workloads.offer import Kind, Offer, Workload
from ekiden.evaluation.workloads.statistics import statistics_of
from tests.unit.evaluation.workloads.making import made


def test_figures_are_those_worked_out_by_hand():
    offers = (
        Offer(id="a", at=0.0, output_tokens=2, max_tokens=2, prompt_tokens=10, tenant="x", deadline=1.0),
        Offer(id="b", at=1.0, output_tokens=4, prompt_tokens=30, prefix_of="a", prefix_tokens=8, tenant="y"),
        Offer(id="c", at=4.0, output_tokens=6, text="four", system="six six", language="en", pair="p", tenant="y"),
        Offer(id="d", at=4.0, output_tokens=8, text="ヨン", language="ja", pair="p", tenant="y"),
    )
    workload = Workload(name="w", kind=Kind.NORMAL, seconds=8.0, offers=offers, made={}, sources={})
    figures = statistics_of(workload)
    assert (figures.requests, figures.rate, figures.output_mean) == (4, 0.5, 5.0)
    assert figures.output_cv == pytest.approx(5**0.5 / 5)
    assert figures.gap_cv == pytest.approx((14 / 9) ** 0.5 / (4 / 3))  # gaps 1, 3 and 0
    assert figures.prompt_tokens is not None
    assert figures.prompt_tokens["max"] == 30
    assert figures.prompt_characters is not None
    assert figures.prompt_characters["max"] == 11
    assert figures.shared_prompt_share == 8 / 40
    assert figures.tenants == {"y": 3, "x": 1}
    assert figures.languages == {"en": 1, "ja": 1}
    assert (figures.pairs, figures.stated_limits, figures.deadlines) == (1, 1, 1)
    assert figures.digest == workload.digest


def test_one_request_has_no_gaps():
    figures = statistics_of(made("poisson", seconds=1.0))
    assert figures.requests == 1
    assert figures.gap_cv is None
    assert figures.output_cv is None
