"""From offers to requests and back: exact lengths under any stated limit, and every way to end by name."""

import pytest

from ekiden.backends.fake import FakeRunner
from ekiden.config import controls_of
from ekiden.engine.driver import VirtualClock, arrivals, drive
from ekiden.engine.engine_core import EngineCore, StepResult
from ekiden.errors import UserError
from ekiden.evaluation.load.requests import Collector, exact_sampling, request_of
from ekiden.evaluation.workloads.offer import Kind, Offer, Workload
from ekiden.sampling.sampler import Sampler
from ekiden.state.request import Finish, FinishReason, Refusal, RefusalReason, RequestUpdate
from tests.unit.evaluation.simulated_arms import config

OFFER = Offer(id="a", at=2.0, output_tokens=5, max_tokens=5, tenant="t", priority=3, deadline=4.0, language="ja")


def finish(reason: FinishReason) -> Finish:
    return Finish(
        reason=reason,
        stop_reason=None,
        num_prompt_tokens=3,
        num_output_tokens=5,
        num_cached_tokens=0,
        arrival_time=0.0,
        admitted_time=None,
        first_token_time=None,
        finish_time=0.0,
    )


def test_a_request_keeps_what_the_offer_says() -> None:
    request = request_of(OFFER, [1, 2, 3], 100.0)
    assert (request.request_id, request.arrival_time, request.deadline) == ("a", 102.0, 106.0)
    assert (request.tenant, request.priority, request.prompt_token_ids) == ("t", 3, (1, 2, 3))
    assert (request.sampling.max_tokens, request.sampling.ignore_eos, request.sampling.greedy) == (5, True, True)


@pytest.mark.parametrize("stated", [None, 9])
def test_another_stated_limit_is_what_the_scheduler_sees(stated: int | None) -> None:
    offer = Offer(id="a", at=0.0, output_tokens=5, max_tokens=stated)
    sampling = exact_sampling(offer, end_token=42)
    assert (sampling.max_tokens, sampling.min_tokens, sampling.ignore_eos) == (stated, 4, False)
    assert sampling.logit_bias == {42: 100.0}
    with pytest.raises(UserError, match="request a: output_tokens is 5 .* no end token"):
        exact_sampling(offer, end_token=None)


@pytest.mark.parametrize(("length", "stated"), [(0, 5), (5, 4)])
def test_lengths_that_cannot_be_are_refused(length: int, stated: int) -> None:
    with pytest.raises(UserError, match=f"output_tokens is {length} and max_tokens {stated}"):
        exact_sampling(Offer(id="a", at=0.0, output_tokens=length, max_tokens=stated), end_token=1)


@pytest.mark.parametrize(
    ("last", "failure"),
    [
        (RequestUpdate("a", (4, 5), finish(FinishReason.LENGTH)), None),
        (RequestUpdate("a", (4,), finish(FinishReason.STOP)), "wrong_length"),
        (RequestUpdate("a", (), finish(FinishReason.DEADLINE)), "deadline"),
        (RequestUpdate("a", (), finish(FinishReason.ABORT)), "aborted"),
        (RequestUpdate("a", (), finish(FinishReason.ERROR)), "error"),
        (
            RequestUpdate("a", (), None, Refusal(reason=RefusalReason.QUEUE_FULL_REQUESTS, message="")),
            "refused_queue_full_requests",
        ),
        (RequestUpdate("a", (4, 5)), "unfinished"),
    ],
)
def test_times_tokens_and_ends_are_collected(last: RequestUpdate, failure: str | None) -> None:
    now, answers = [10.0], []
    workload = Workload(name="w", kind=Kind.NORMAL, seconds=3.0, offers=(OFFER,), made={}, sources={})
    collector = Collector(
        workload, [(1, 2, 3)], start=10.0, now=lambda: now[0], on_answer=lambda: answers.append(now[0])
    )
    for moment, update in (
        (12.5, RequestUpdate("a", (1, 2, 3))),
        (12.75, RequestUpdate("warm-up", (9,))),
        (13.0, last),
    ):
        now[0] = moment
        collector(StepResult([update], True, None))
    collector.note_sent("a", 12.25)
    (result,) = collector.results()
    assert result.record.failure == failure
    assert result.record.event_times == [2.5] * 3 + [3.0] * len(last.token_ids)
    assert result.token_ids == (1, 2, 3, *last.token_ids)
    assert (result.record.intended, result.record.sent, result.record.ttft) == (2.0, 2.25, 0.5)
    assert (result.prompt_tokens, result.output_tokens, result.tenant, result.language) == (3, 5, "t", "ja")
    assert answers == ([13.0] if last.terminal else [])
    assert collector.all_ended == last.terminal


@pytest.mark.parametrize("stated", [None, 9, 5])
def test_the_sampler_ends_the_answer_at_its_length(stated: int | None) -> None:
    """With a vocabulary of 8 the end token comes by chance too, but never before its time."""
    ends = frozenset({3})
    runner = FakeRunner(vocab_size=8, block_size=16, sampler=Sampler(eos_token_ids=ends))
    core = EngineCore(
        runner=runner,
        controls=controls_of(config()),
        cache=config().cache,
        clock=lambda: 0.0,
        eos_token_ids=ends,
    )
    offers = tuple(
        Offer(id=str(number), at=0.0, output_tokens=1 + number % 5, max_tokens=stated and stated - 4 + number % 5)
        for number in range(20)
    )
    workload = Workload(name="w", kind=Kind.NORMAL, seconds=1.0, offers=offers, made={}, sources={})
    prompts = [(number % 8, number // 8) for number in range(20)]
    collector = Collector(workload, prompts, start=0.0, now=lambda: 0.0)
    requests = [request_of(offer, prompt, 0.0, end_token=3) for offer, prompt in zip(offers, prompts, strict=True)]
    drive(core, arrivals(core, VirtualClock(), requests), VirtualClock(), collector)
    found = [(result.record.failure, len(result.token_ids or ())) for result in collector.results()]
    assert found == [(None, offer.output_tokens) for offer in offers]
