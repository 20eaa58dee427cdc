"""Figures against values worked out by hand."""

import pytest

from ekiden.measure.figures import (
    FORMULAS,
    RequestRecord,
    StepSample,
    request_figures,
    step_figures,
    stream_figures,
)


def record(intended: float, sent: float, times: list[float], output: int, failure: str | None = None) -> RequestRecord:
    end = times[-1] if times else sent
    return RequestRecord(
        intended=intended,
        sent=sent,
        end=end,
        event_times=times,
        prompt_tokens=10,
        output_tokens=output,
        failure=failure,
    )


def test_latencies_count_from_the_intended_arrival_and_not_from_sending():
    one = record(1.0, 1.5, [3.0, 4.0, 6.0], 3)
    assert one.ttft == 2.0
    assert one.e2e == 5.0
    assert one.tpot == 1.5
    assert one.gaps == [1.0, 2.0]


def test_tpot_divides_by_tokens_and_not_by_events():
    assert record(0.0, 0.0, [1.0, 2.0], 5).tpot == 0.25


def test_one_token_gives_no_tpot():
    assert record(0.0, 0.0, [1.0], 1).tpot is None
    assert record(0.0, 0.0, [1.0, 1.0], 1).tpot is None


def test_an_answer_meets_its_objectives_up_to_the_limit_and_only_when_whole():
    times = [2.0, 3.0, 4.0]
    assert record(0.0, 0.0, times, 3).meets(ttft=2.0, tpot=1.0)
    assert not record(0.0, 0.0, times, 3).meets(ttft=1.9, tpot=1.0)
    assert not record(0.0, 0.0, times, 3).meets(ttft=2.0, tpot=0.9)
    assert record(0.0, 0.0, [2.0], 1).meets(ttft=2.0, tpot=0.0)
    assert not record(0.0, 0.0, times, 3, "truncated").meets(ttft=9.0, tpot=9.0)
    assert not record(0.0, 0.0, [], 0).meets(ttft=9.0, tpot=9.0)


def test_failures_are_counted_by_kind_and_give_no_latency():
    records = [record(0, 0, [1.0, 2.0], 2), record(0, 0, [9.0], 1, "truncated"), record(0, 0, [], 0, "http_503")]
    figures = request_figures(records, duration=2.0)
    assert figures["requests"] == 3
    assert figures["failures"] == 2
    assert figures["failures_by_kind"] == {"truncated": 1, "http_503": 1}
    assert figures["output_tokens_per_second"] == 1.0
    assert figures["total_tokens_per_second"] == 6.0
    ttft = figures["ttft_seconds"]
    assert isinstance(ttft, dict)
    assert ttft["max"] == 1.0


def test_decode_rate_takes_the_time_of_the_steps_that_hold_decodes():
    steps = [
        StepSample(seconds=1.0, model_seconds=0.9, prefill_tokens=100),
        StepSample(seconds=2.0, model_seconds=1.8, decode_tokens=10, prefill_tokens=50),
        StepSample(seconds=1.0, model_seconds=0.9, decode_tokens=20),
    ]
    figures = step_figures(steps)
    assert figures["decode_tokens_per_second"] == 10.0
    assert figures["pure_decode_tokens_per_second"] == 20.0
    assert figures["host_share"] == pytest.approx(0.1)


def test_a_run_without_time_or_decodes_has_no_rates():
    assert request_figures([], duration=0.0)["output_tokens_per_second"] is None
    assert step_figures([])["decode_tokens_per_second"] is None


def test_every_latency_has_its_formula():
    figures = {**stream_figures([], duration=1.0), **step_figures([])}
    latencies = {name for name in figures if name.endswith(("_seconds", "_per_second", "host_share"))}
    assert latencies <= set(FORMULAS)
