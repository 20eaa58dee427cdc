"""Planted causes: in each world one thing slows a request down, and it must be named first, with its exact time."""

from pathlib import Path
from typing import Any

import pytest

from ekiden.config import LimitsConfig
from ekiden.evidence.causes import OWN_WORK, Cause
from ekiden.evidence.explain import Explanation, explain
from ekiden.evidence.reader import LedgerReader
from ekiden.state.request import Pooling, Reading
from ekiden.state.sequence import PauseReason
from tests.unit.evidence.directed import Directed


def explained(world: Directed, folder: Path, name: str) -> Explanation:
    """The explanation of one request; its causes must add up to its measured time."""
    with world.stored(folder) as reader:
        told = explain(reader, reader.requests_named(name)[0])
    finish = next(u.finish for u in world.updates if u.request_id == name and u.terminal)
    assert finish is not None
    measured = finish.finish_time - finish.arrival_time
    assert sum(cause.seconds for cause in told.causes) == pytest.approx(measured, abs=2e-6)
    assert told.e2e_seconds == pytest.approx(measured, abs=2e-6)
    assert [c.seconds for c in told.causes] == sorted((c.seconds for c in told.causes), reverse=True)
    return told


def first(told: Explanation) -> str:
    return told.causes[0].cause


def test_no_slot_free(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=1)
    world.submit("long", output=60)
    world.step(2)
    world.submit("late", output=2)
    world.run()
    told = explained(world, tmp_path, "late")
    assert first(told) == Cause.SLOTS
    cause = told.causes[0]
    assert cause.control == {"name": "max_num_seqs", "value": "1", "set_by": "configuration", "who": ""}
    assert cause.saved_seconds == cause.seconds
    assert cause.decision["stage"] == "refill"


def test_a_pool_that_is_too_small(tmp_path: Path) -> None:
    world = Directed(num_blocks=8)
    world.submit("holder", prompt=100, output=20)  # 7 of the 8 blocks
    world.step(2)
    world.submit("large", prompt=60, output=2)
    world.run()
    told = explained(world, tmp_path, "large")
    assert first(told) == Cause.KV_BLOCKS
    assert any(event.event == "BLOCKED" for event in told.life)


def test_behind_a_request_that_does_not_fit(tmp_path: Path) -> None:
    world = Directed(num_blocks=8, max_overtakes=0)
    world.submit("holder", prompt=90, output=20)
    world.step(2)
    world.submit("large", prompt=90, output=2)
    world.submit("small", prompt=4, output=2)
    world.run()
    told = explained(world, tmp_path, "small")
    assert first(told) == Cause.BEHIND_REQUEST
    assert told.causes[0].named == ["large"]


def test_a_flooding_tenant_meets_the_fair_order(tmp_path: Path) -> None:
    """The flooder's own request waits for its tenant's turn: the other tenant, who came later, goes first."""
    world = Directed(max_num_seqs=1, scheduling_policy="fair")
    for number in range(3):
        world.submit(f"flood-{number}", tenant="flooder", output=20)
    world.step(2)
    for number in range(2):
        world.submit(f"other-{number}", tenant="quiet", output=20)
    world.run()
    told = explained(world, tmp_path, "flood-1")
    assert Cause.TENANT_TURN in {cause.cause for cause in told.causes}
    turn = next(cause for cause in told.causes if cause.cause == Cause.TENANT_TURN)
    assert turn.named[0].startswith("other-")
    quiet = explained(world, tmp_path / "again", "other-0")
    assert first(quiet) in (Cause.SLOTS, Cause.OWN_DECODE)
    assert Cause.TENANT_TURN not in {cause.cause for cause in quiet.causes}


@pytest.mark.parametrize(
    ("order", "cause", "urgent"),
    [
        ("priority", Cause.PRIORITY, {"priority": -9}),
        ("deadline", Cause.EARLIER_DEADLINE, {"deadline": 5.0}),
    ],
)
def test_later_but_more_urgent_requests(tmp_path: Path, order: str, cause: Cause, urgent: dict[str, Any]) -> None:
    world = Directed(max_num_seqs=1, scheduling_policy=order)
    world.submit("running", output=3)
    world.step()
    world.submit("plain", output=2)
    world.step()
    for number in range(3):
        world.submit(f"urgent-{number}", output=20, **urgent)
    world.run()
    told = explained(world, tmp_path, "plain")
    assert first(told) == cause
    assert told.causes[0].named[0].startswith("urgent-")


def test_the_batching_policy_lets_nobody_join(tmp_path: Path) -> None:
    world = Directed(batching="static")
    world.submit("early", output=50)
    world.step(2)
    world.submit("late", output=2)
    world.run()
    told = explained(world, tmp_path, "late")
    assert first(told) == Cause.BATCHING
    assert told.causes[0].control is not None
    assert told.causes[0].control["value"] == "static"


def test_a_long_prefill_ahead(tmp_path: Path) -> None:
    world = Directed()
    world.submit("long", prompt=600, output=2)
    world.step()
    world.submit("short", output=4)
    world.run()
    told = explained(world, tmp_path, "short")
    assert first(told) == Cause.OTHERS_PREFILL
    assert told.causes[0].named == ["long"]


def test_too_many_prompts_at_once(tmp_path: Path) -> None:
    world = Directed(max_concurrent_prefills=1)
    world.submit("long", prompt=600, output=2)
    world.submit("short", prompt=10, output=2)
    world.run()
    told = explained(world, tmp_path, "short")
    assert first(told) == Cause.OTHERS_PREFILL
    assert told.causes[0].details["concurrent_prefills"] > 0.5


def test_a_decode_slowed_by_another_prompt(tmp_path: Path) -> None:
    world = Directed()
    world.submit("stream", output=60)
    world.step(30)
    world.submit("prompt", prompt=900, output=1)
    world.run()
    told = explained(world, tmp_path, "stream")
    shares = {cause.cause: cause for cause in told.causes}
    assert first(told) == Cause.OTHERS_PREFILL
    # 900 prompt tokens at 1 ms each, as far as the fitted model tells them from the rest of the step.
    assert shares[Cause.OTHERS_PREFILL].seconds == pytest.approx(0.9, rel=0.15)


def test_a_slow_reader(tmp_path: Path) -> None:
    world = Directed()
    world.submit("read slowly", output=10)
    world.step(3)
    world.core.pause("read slowly", PauseReason.SLOW_READER)
    world.step()
    world.wait(5.0)
    world.core.resume("read slowly", PauseReason.SLOW_READER)
    world.run()
    told = explained(world, tmp_path, "read slowly")
    assert first(told) == Cause.SLOW_READER
    assert told.causes[0].seconds == pytest.approx(5.0, abs=0.1)


def test_an_operator_pauses_it(tmp_path: Path) -> None:
    world = Directed()
    world.submit("held", output=10)
    world.step(3)
    world.core.pause("held", PauseReason.OPERATOR, "alice")
    world.step()
    world.wait(3.0)
    world.core.resume("held", PauseReason.OPERATOR, "alice")
    world.run()
    told = explained(world, tmp_path, "held")
    assert first(told) == Cause.OPERATOR_PAUSE
    assert told.causes[0].control is not None
    assert (told.causes[0].control["set_by"], told.causes[0].control["who"]) == ("person", "alice")


def test_a_preemption(tmp_path: Path) -> None:
    world = Directed(num_blocks=9)
    world.submit("old", prompt=60, output=60)
    world.submit("young", prompt=60, output=30)
    world.run()
    told = explained(world, tmp_path, "young")
    assert told.preemptions >= 1
    assert first(told) == Cause.PREEMPTED
    assert told.causes[0].decision["runner_up"] is None


def test_a_preemption_without_swap_space_is_computed_again(tmp_path: Path) -> None:
    world = Directed(num_blocks=9, num_swap_blocks=0)
    world.submit("old", prompt=60, output=60)
    world.submit("young", prompt=60, output=30)
    world.run()
    told = explained(world, tmp_path, "young")
    causes = {cause.cause: cause.seconds for cause in told.causes}
    assert causes[Cause.RECOMPUTE] > 0.05
    assert causes[Cause.PREEMPTED] > 0.05


def test_newcomers_wait_while_a_preempted_one_comes_back(tmp_path: Path) -> None:
    world = Directed(num_blocks=9)
    world.submit("old", prompt=60, output=60)
    world.submit("young", prompt=60, output=30)
    while not world.core.population.preempted:
        world.step()
    world.submit("newcomer", output=2)
    world.run()
    assert first(explained(world, tmp_path, "newcomer")) == Cause.PREEMPTED_FIRST


def test_a_paused_request_that_finds_its_slot_taken(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=1)
    world.submit("held", output=10)
    world.step(3)
    world.core.pause("held")
    world.submit("other", output=60)
    world.step(2)
    world.core.resume("held")
    world.run()
    assert first(explained(world, tmp_path, "held")) == Cause.RESUMING


def test_a_prompt_that_waits_for_the_pace_of_others(tmp_path: Path) -> None:
    """Two prompts beside a decode: the first gets its smallest chunk, the second none, to keep the target."""
    world = Directed(target_itl_ms=30.0)
    world.submit("stream", output=80)
    world.step(30)
    world.submit("one", prompt=300, output=1)
    world.submit("two", prompt=20, output=1)
    world.run()
    told = explained(world, tmp_path, "two")
    assert first(told) == Cause.INTER_TOKEN_TARGET
    assert told.causes[0].control is not None
    assert told.causes[0].control["name"] == "target_itl_ms"


def test_a_shared_beginning_is_computed_by_another(tmp_path: Path) -> None:
    world = Directed(prefix_caching=True)
    prompt = tuple(1 + n % 40 for n in range(400))
    world.submit("first", tokens=prompt, output=2)
    world.submit("second", tokens=prompt, output=2)
    world.run()
    told = explained(world, tmp_path, "second")
    assert first(told) == Cause.PREFIX_IN_FLIGHT
    assert told.cached_tokens > 300


def test_the_step_in_progress(tmp_path: Path) -> None:
    world = Directed()
    world.submit("stream", output=40)
    world.step(3)
    world.submit("late", output=1)
    world.now += 0.5  # the engine stood still before its next step
    world.run()
    told = explained(world, tmp_path, "late")
    assert first(told) == Cause.STEP_BOUNDARY
    stream = explained(world, tmp_path / "b", "stream")
    assert any(cause.cause == Cause.HOST and cause.seconds > 0.4 for cause in stream.causes)


def test_an_expired_deadline(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=1, limits=LimitsConfig(abstain=False))
    world.submit("long", output=200)
    world.step(2)
    world.submit("due", output=4, deadline=0.5)
    world.run()
    told = explained(world, tmp_path, "due")
    assert told.reason == "deadline"
    assert told.headline.startswith("Ended by its deadline after")
    assert first(told) == Cause.SLOTS


def test_a_refusal(tmp_path: Path) -> None:
    world = Directed(limits=LimitsConfig(max_num_queued_reqs=1), max_num_seqs=1)
    for number in range(4):
        world.submit(f"r{number}", output=4)
    world.run()
    with world.stored(tmp_path) as reader:
        told = explain(reader, reader.requests_named("r3")[0])
    assert told.status == "refused"
    assert told.headline.startswith("Refused (queue_full_requests)")
    assert told.causes == []


def test_an_answer_by_itself_is_its_own_work(tmp_path: Path) -> None:
    world = Directed()
    world.submit("alone", prompt=100, output=20)
    world.run()
    told = explained(world, tmp_path, "alone")
    own = sum(cause.seconds for cause in told.causes if cause.cause in OWN_WORK)
    assert own == pytest.approx(told.e2e_seconds, abs=1e-5)


def test_an_undisturbed_life_has_nothing_computed_again(tmp_path: Path) -> None:
    world = Directed()
    world.submit("earlier", output=3)
    world.run()
    world.submit("short", output=3)
    world.submit("vector", reading=Reading(pooling=Pooling.MEAN))
    world.run()
    told = explained(world, tmp_path, "short")
    assert [event.event for event in told.life] == ["SENT", "ARRIVED", "ADMITTED", "PREFILL", "FIRST_TOKEN", "ENDED"]
    assert told.expected_output is not None
    with LedgerReader(tmp_path / "directed.sqlite") as reader:
        vector = explain(reader, reader.requests_named("vector")[0])
    assert vector.expected_output is None, "what is only read has no answer to expect"
