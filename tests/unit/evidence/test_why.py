"""Direct questions, each answered from what was recorded."""

from pathlib import Path
from typing import Any

import pytest

from ekiden.config import LimitsConfig
from ekiden.evidence.explain import explain, worst
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.why import Answer, Question, why
from ekiden.state.controls import TenantLimits
from ekiden.state.request import RefusalReason
from tests.unit.evidence.directed import Directed


def ask(reader: LedgerReader, name: str, question: Question, other: str | None = None) -> Answer:
    than = None if other is None else reader.requests_named(other)[0]
    return why(reader, reader.requests_named(name)[0], question, than)


def refused(folder: Path, prepare: Any, **settings: Any) -> Answer:
    world = Directed(**settings)
    prepare(world)
    world.submit("asked", **({"prompt": 40, "output": 8} | getattr(prepare, "fields", {})))
    world.step(2)
    with world.stored(folder) as reader:
        return ask(reader, "asked", Question.REFUSED)


def fill(world: Directed) -> None:
    world.submit("running", output=50)
    world.step(2)
    for number in range(2):
        world.submit(f"waiting-{number}", prompt=40, output=50)
    world.step(1)


LIMITED = {"default": TenantLimits(max_num_queued_reqs=2)}
RATED = {"default": TenantLimits(tokens_per_second=1.0, burst_tokens=170.0)}


@pytest.mark.parametrize(
    ("reason", "settings", "limit"),
    [
        (RefusalReason.QUEUE_FULL_REQUESTS, {"limits": LimitsConfig(max_num_queued_reqs=2)}, "max_num_queued_reqs"),
        (RefusalReason.QUEUE_FULL_TOKENS, {"limits": LimitsConfig(max_num_queued_tokens=90)}, "max_num_queued_tokens"),
        (RefusalReason.TENANT_QUEUE_FULL, {"tenants": LIMITED}, "tenants_file"),
        (RefusalReason.TENANT_RATE, {"tenants": RATED}, "tenants_file"),
    ],
)
def test_refusals_for_lack_of_room(tmp_path: Path, reason: RefusalReason, settings: Any, limit: str) -> None:
    answer = refused(tmp_path, fill, max_num_seqs=1, **settings)
    assert answer.facts["reason"] == reason
    assert answer.facts["limit"] == limit
    assert answer.facts["retry_after"] > 0
    assert f"refused at intake, {reason}" in answer.words
    if limit.startswith("max_"):
        assert answer.facts["set_by"] == "configuration"
        assert answer.facts["waiting_requests"] == 2


def test_a_queue_that_is_too_slow(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=1, limits=LimitsConfig(max_queue_seconds=0.5))
    for number in range(3):
        world.submit(f"before-{number}", output=40)
        world.step(30)
    for number in range(6):
        world.submit(f"late-{number}", output=40)
        world.step()
    world.run()
    with world.stored(tmp_path) as reader:
        answer = ask(reader, "late-5", Question.REFUSED)
    assert answer.facts["reason"] == RefusalReason.QUEUE_TOO_SLOW
    assert answer.facts["limit_value"] == "0.5"


def test_a_server_that_is_closed(tmp_path: Path) -> None:
    world = Directed()
    world.drain("anna")
    world.submit("asked")
    world.step()
    with world.stored(tmp_path) as reader:
        answer = ask(reader, "asked", Question.REFUSED)
    assert answer.facts["reason"] == RefusalReason.DRAINING
    assert "draining=on was set by person anna" in answer.words


def test_what_can_never_run(tmp_path: Path) -> None:
    world = Directed(num_blocks=4)
    world.submit("too large", prompt=100)
    world.submit("fine", output=3)
    world.run()
    with world.stored(tmp_path) as reader:
        answer = ask(reader, "too large", Question.REFUSED)
        assert answer.facts["reason"] == RefusalReason.EXCEEDS_KV_CACHE
        assert ask(reader, "fine", Question.REFUSED).words == "It was not refused."
        assert ask(reader, "too large", Question.TRUNCATED).words.startswith("It was not cut short")


def test_why_an_answer_is_short(tmp_path: Path) -> None:
    world = Directed(num_blocks=10)
    world.submit("own limit", output=7)
    world.submit("natural", output=150, sampling={"ignore_eos": False})
    world.run()
    world.submit("no limit", prompt=30, sampling={"max_tokens": None})
    world.step(4)
    world.submit("due", output=100, deadline=0.2)
    world.run()
    world.submit("left", output=50)
    world.step(5)
    world.core.abort("left")
    world.run()
    with world.stored(tmp_path) as reader:
        words = {n: ask(reader, n, Question.TRUNCATED).words for n in ("own limit", "no limit", "due", "left")}
        natural = ask(reader, "natural", Question.TRUNCATED)
        expected = explain(reader, reader.requests_named("left")[0]).expected_output
    assert words["own limit"].startswith("It reached the 7 tokens that it asked for with max_tokens.")
    assert "It reached the 130 tokens that were left of the context of 4096 (or of the KV pool)" in words["no limit"]
    assert words["due"].startswith("Ended by its deadline after")
    assert words["left"].startswith("Its client went away, or it was aborted, after")
    assert natural.words.startswith("It was not cut short: it ended by itself") == (natural.facts["reason"] == "stop")
    assert expected is not None
    assert "Its tenant's answers had led to expect" in words["left"]


def test_a_failed_step_is_why(tmp_path: Path) -> None:
    from ekiden.state.runner import RunnerError

    world = Directed()

    def fail(step: int) -> None:
        if step in (4, 5):  # a step that fails once is run again
            raise RunnerError("the model ran out of luck")

    world.runner._before_step = fail
    world.submit("unlucky", output=20)
    world.run()
    with world.stored(tmp_path) as reader:
        assert (
            "It failed after 3 tokens: the model could not compute it: RunnerError: the model ran out of luck."
            in ask(reader, "unlucky", Question.TRUNCATED).words
        )


def test_why_it_was_preempted_and_who_else_could_have_been(tmp_path: Path) -> None:
    world = Directed(num_blocks=11)
    world.submit("old", prompt=48, output=70)
    world.submit("middle", prompt=36, output=70)
    world.submit("young", prompt=33, output=40)
    world.run()
    with world.stored(tmp_path) as reader:
        answer = ask(reader, "young", Question.PREEMPTED)
        assert answer.facts["preemptions"][0]["runner_up"] in ("middle", "old")
        assert "it was the newest of those running" in answer.words
        assert answer.facts["away_seconds"] > 0
        assert ask(reader, "old", Question.PREEMPTED).words == "It was never preempted."


def test_why_two_answers_differ(tmp_path: Path) -> None:
    world = Directed()
    prompt = tuple(range(1, 20))
    world.submit("first", tokens=prompt, output=6)
    world.run()
    world.submit("same", tokens=prompt, output=6)
    world.submit("longer", tokens=prompt, output=9)
    world.submit("another", tokens=(9, *prompt), output=6)
    world.submit("drawn", tokens=prompt, output=12, sampling={"temperature": 1.0})
    world.run()
    with world.stored(tmp_path) as reader:
        assert "first has the same tokens" in ask(reader, "same", Question.DIFFERENT, "first").words
        assert ask(reader, "longer", Question.DIFFERENT, "first").words.endswith("differently from first: max_tokens.")
        assert "their digests differ" in ask(reader, "another", Question.DIFFERENT, "first").words
        assert "differently from drawn" in ask(reader, "same", Question.DIFFERENT).words
        assert ask(reader, "another", Question.DIFFERENT).words.startswith("No other request of this run")


def test_other_tenants_are_not_named_to_a_tenant(tmp_path: Path) -> None:
    world = Directed()
    world.submit("secret", prompt=600, output=2, tenant="theirs")
    world.step()
    world.submit("mine", output=4, tenant="ours")
    world.run()
    with world.stored(tmp_path) as reader:
        row = reader.requests_named("mine")[0]
        assert explain(reader, row).causes[0].named == ["secret"]
        assert explain(reader, row, viewer="ours").causes[0].named == ["a request of another tenant"]


def test_the_worst_requests_come_first(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=1)
    for number in range(5):
        world.submit(f"r{number}", output=5)
    world.run()
    world.submit("last", output=40)
    world.run()
    with world.stored(tmp_path) as reader:
        found = worst(reader, 3)
        assert [one.request_id for one in found] == ["last", "r4", "r3"]
        assert found[1].cause == "waiting_for_slot"
        last_end = reader.end(6)
        assert last_end is not None
        assert [one.request_id for one in worst(reader, 3, since=last_end.at)] == ["last"]


def test_an_unfinished_request_is_explained_so_far(tmp_path: Path) -> None:
    world = Directed()
    world.submit("going on", output=1000)
    world.step(10)
    with world.stored(tmp_path) as reader:
        told = explain(reader, reader.requests_named("going on")[0])
    assert told.status == "in_flight"
    assert told.headline.startswith("In the engine for")
    assert told.e2e_seconds == pytest.approx(world.now, abs=1e-5)
