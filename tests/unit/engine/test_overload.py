"""Five times the load there is capacity for, in virtual time: a limit on the wait keeps answers worth having."""

from ekiden.config import LimitsConfig
from ekiden.evaluation.workloads.synthetic import poisson_arrivals
from ekiden.guardrails.signals import DrainRate, Progress
from ekiden.state.request import FinishReason, RefusalReason
from tests.unit.evidence.directed import Directed

SECONDS = 60.0
SLOTS = 16
PATIENCE = 2.0
"""Seconds to the first token that are still good."""
PROMPT, OUTPUT = (7,) * 32, 16


def good_answers_a_second(rate: float, limit: float | None) -> float:
    """Whole answers whose first token came in time, for each second of arrivals at ``rate`` requests a second."""
    world = Directed(
        num_blocks=400, max_num_seqs=SLOTS, max_num_batched_tokens=256, limits=LimitsConfig(max_queue_seconds=limit)
    )
    arrivals = [at for at in poisson_arrivals(int(2 * SECONDS * rate), rate, seed=3) if at < SECONDS]
    for index, at in enumerate(arrivals):
        while world.now < at and world.core.has_work:
            world.step()
        world.now = max(world.now, at)
        world.submit(str(index), tokens=PROMPT, output=OUTPUT)
    world.run()
    refused = {update.refusal.reason for update in world.updates if update.refusal}
    assert refused <= {RefusalReason.QUEUE_TOO_SLOW, RefusalReason.QUEUE_FULL_REQUESTS}
    ends = [update.finish for update in world.updates if update.finish]
    good = [
        end
        for end in ends
        if end.reason is FinishReason.LENGTH and (end.first_token_time or 0.0) - end.arrival_time <= PATIENCE
    ]
    return len(good) / SECONDS


def capacity() -> float:
    """Requests a second that are served while there is always a queue."""
    world = Directed(num_blocks=400, max_num_seqs=SLOTS, max_num_batched_tokens=256)
    for index in range(320):
        world.submit(str(index), tokens=PROMPT, output=OUTPUT)
    world.run()
    return 320 / world.now


def test_five_times_the_load_keeps_nine_tenths_of_the_good_answers() -> None:
    full = capacity()
    at_capacity = good_answers_a_second(full, PATIENCE / 2)
    overloaded = good_answers_a_second(5 * full, PATIENCE / 2)
    assert at_capacity > 0.8 * full
    assert overloaded >= 0.9 * at_capacity
    assert good_answers_a_second(5 * full, None) < 0.5 * at_capacity, "without the limit everybody waits too long"


def test_the_first_to_join_empty_slots_say_nothing_of_the_rate_at_which_a_queue_drains() -> None:
    rate = DrainRate()
    rate.observe(joined=0, backlogged=True, now=0.0)
    rate.observe(joined=32, backlogged=True, now=1.0)
    assert rate.seconds_for(32) == 1.0
    progress = Progress()
    progress.add(made=0, expected=10, seconds=1.0)
    assert progress.ends_per_second(2) is None, "nothing is known while nobody has a token"
    progress.add(made=2, expected=10, seconds=1.0)  # five seconds an answer
    assert progress.ends_per_second(32) == 6.4
    assert rate.seconds_for(32, at_most=6.4) == 5.0
    assert rate.seconds_for(32, at_most=64.0) == 1.0
    assert DrainRate().seconds_for(32, at_most=6.4) == 5.0
