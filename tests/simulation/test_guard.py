"""For every rule that the package carries: its harm on the production engine core in virtual time. The signal fires
before the objective is missed, the action is taken, and service recovers; the same run without the guard stands beside.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from ekiden.evidence.lead import leads
from ekiden.evidence.reader import LedgerReader
from ekiden.guardrails.ladder import waits_for_person
from ekiden.guardrails.rules import load_rules
from ekiden.state.controls import ControlChange, SetBy
from ekiden.state.request import Request
from tests.simulation.guarded import Guarded, Harm, load, shipped

AT = 12.0
END = 52.0


def more_slots(world: Guarded) -> None:
    """A person's change that the machine cannot bear."""
    world.core.set_controls(ControlChange(values={"max_num_seqs": 16}, set_by=SetBy.PERSON, who="anna"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``action``: what is to have been done first; ``sets``: the control that it changes. ``helped``: the share of bad
    requests, of those without the guard, that there may be with it."""

    requests: Callable[[], list[Request]]
    action: str
    harm: Callable[[], Harm] = lambda: Harm(at=AT)
    sets: str | None = None
    helped: float = 0.5
    ttft: float = 2.0
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "itl-above-target": Case(  # every step takes twice as long
        requests=lambda: load(3.2, 0, END, together=8),
        harm=lambda: Harm(at=AT, slowdown=2.0),
        action="tighten_prefill",
        sets="max_concurrent_prefills",
    ),
    "queue-burns-ttft": Case(  # 17 requests a second where 9 can be served
        requests=lambda: load(5, 0, END) + load(12, AT, AT + 15),
        action="shed_newest",
        sets="max_num_queued_reqs",
    ),
    "tenant-floods": Case(
        requests=lambda: load(3, 0, END) + load(20, AT, AT + 15, tenant="flood"),
        action="shed_tenant",
        sets="tenants",
        helped=0.25,
    ),
    "unfair-service": Case(
        requests=lambda: load(3, 0, END) + load(10, AT, AT + 20, tenant="flood"),
        action="order_fair",
        sets="scheduling_policy",
        helped=0.75,
    ),
    "stalled-steps": Case(  # a step does not end for 40 s
        requests=lambda: load(3, 0, END) + load(1, AT - 3, AT - 2, output=400),
        harm=lambda: Harm(at=AT, wedged=40.0),
        action="page",
        helped=0.6,
    ),
    "kv-leak": Case(
        requests=lambda: load(3, 0, END),
        harm=lambda: Harm(at=AT, leaked_blocks=2.0),
        action="page",
        helped=0.0,
        options={"num_blocks": 64},
    ),
    "swap-thrash": Case(  # bursts whose sequences do not fit together, and a slow swap space
        requests=lambda: (
            load(1, 0, AT, output=64, prompt=128) + load(8 / 6, AT, END, together=8, output=64, prompt=128)
        ),
        harm=lambda: Harm(at=AT, swap_seconds=0.1),
        action="shrink_batch",
        sets="max_num_seqs",
        ttft=4.0,
        options={"num_blocks": 48},
    ),
    "steps-slow-down": Case(  # the person who is paged repairs it
        requests=lambda: load(4, 0, END),
        harm=lambda: Harm(at=AT, slowdown=2.5),
        action="page",
        options={"repairs_after": 8.0},
    ),
    "answers-fail": Case(  # a change at run time that the machine cannot bear
        requests=lambda: load(3.2, 0, END, together=8),
        harm=lambda: Harm(at=AT, failing_rows=4),
        action="go_back",
        sets="max_num_seqs",
        helped=0.1,
        options={"max_num_seqs": 4, "at": {AT: more_slots}},
    ),
    "slo-burns": Case(
        requests=lambda: load(4, 0, 82),
        harm=lambda: Harm(at=20.0, slowdown=2.5),
        action="page",
        options={"repairs_after": 8.0, "seconds": 90.0},
    ),
}


@pytest.fixture(autouse=True)
def folder_of_worlds(tmp_path_factory: pytest.TempPathFactory) -> None:
    global FOLDER
    FOLDER = FOLDER or tmp_path_factory.mktemp("worlds")


FOLDER: Path | None = None


@cache
def world_of(name: str, *, guarded: bool) -> Guarded:
    """Run once for all tests, which only look at it."""
    case, folder = CASES[name], Path(mkdtemp(dir=FOLDER))
    options = {"seconds": 60.0, **case.options}
    rules = shipped(name, ttft=case.ttft)
    return Guarded(folder, case.requests(), rules, harm=case.harm(), guarded=guarded, **options).run()


def test_every_rule_of_the_package_has_its_harm() -> None:
    assert {rule.name for rule in load_rules(None).rules} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_guard_acts_before_the_objective_is_missed(name: str) -> None:
    case = CASES[name]
    plain, world = (world_of(name, guarded=guarded) for guarded in (False, True))
    fired, missed = world.fired_at(name), plain.slo_missed_at
    assert fired is not None
    assert missed is not None
    assert world.harm.at < fired < missed, "the signal comes after the harm and before the miss"
    first = next(taken for taken in world.steps if taken.up)
    assert first.actions == (case.action,)
    assert first.reading.evidence
    assert world.refusals_of_guard == []
    # It recovers: fewer requests are bad, the last of them earlier.
    assert len(world.misses()) <= case.helped * len(plain.misses())
    assert max(world.misses(), default=fired) < plain.misses()[-1]
    # Every step is in the ledger with its evidence, as is what it set.
    if not world.restarts:
        with LedgerReader(world.path) as reader:
            told = [row for row in reader.all_controls() if row.who == f"guard:{name}" and row.why == first.why]
        assert {"guard", case.sets or "guard"} <= {row.name for row in told}
        assert all(row.set_by == "software_rule" and row.expires is not None for row in told)


def test_a_leak_and_a_wedged_step_end_with_a_restart_that_loses_nobody() -> None:
    for name in ("kv-leak", "stalled-steps"):
        world = world_of(name, guarded=True)
        assert len(world.restarts) >= 1
        assert all(outcome.ended is not None for outcome in world.outcomes.values())
        whole = [o for o in world.outcomes.values() if o.finish is not None and o.finish.reason == "length"]
        assert len(whole) == len(world.outcomes)
        assert all(len(o.tokens) == o.request.sampling.max_tokens for o in whole)


def test_a_machine_that_is_well_moves_no_rule_and_what_is_over_leaves_nothing_in_force(tmp_path: Path) -> None:
    calm = Guarded(tmp_path, load(5, 0, 30) + load(2, 0, 30, tenant="other"), shipped(), harm=Harm(), seconds=35.0)
    assert calm.run().steps == []
    (tmp_path / "peak").mkdir()
    requests = load(4, 0, 100) + load(14, AT, AT + 8)
    world = Guarded(tmp_path / "peak", requests, shipped("queue-burns-ttft"), harm=Harm(), seconds=100.0).run()
    assert [taken.after for taken in world.steps] == [1, 0]
    assert world.core.controls.now.max_num_queued_reqs == world.config.limits.max_num_queued_reqs
    assert world.core.controls.now.guard == ""


def test_with_all_rules_at_once_nothing_flaps(tmp_path: Path) -> None:
    """Twice as slow, with a flood: every rule goes one way, then back, and no rule takes more than its rungs allow."""
    requests = load(4, 0, 70) + load(12, AT, AT + 10, tenant="flood")
    rules = shipped()
    harm = Harm(at=AT, until=AT + 15, slowdown=2.0)
    world = Guarded(tmp_path, requests, rules, harm=harm, seconds=75.0, repairs_after=30.0).run()
    assert {taken.rule for taken in world.steps} >= {"queue-burns-ttft", "steps-slow-down"}
    for rule in rules.rules:
        own = [taken for taken in world.steps if taken.rule == rule.name]
        turned = sum(a.up != b.up for a, b in pairwise(own))
        assert turned <= 1, (rule.name, own)
    assert world.refusals_of_guard == []


def test_going_back_holds_until_a_person_has_seen_it() -> None:
    world = world_of("answers-fail", guarded=True)
    (rule,) = world.rules.rules
    assert waits_for_person(rule, world.state["answers-fail"])
    assert world.core.controls.now.max_num_seqs == 4
    assert [taken.pages for taken in world.steps] == [True]


def test_a_recorded_run_tells_the_lead_of_each_rule() -> None:
    """As the guard would have seen it, though the record is read from its end."""
    recorded, world = (world_of("tenant-floods", guarded=guarded) for guarded in (False, True))
    with LedgerReader(recorded.path) as reader:
        told = leads(reader, shipped())
    (lead,) = (each for each in told.rules if each.rule == "tenant-floods")
    assert lead.fired_at is not None
    assert lead.lead_seconds is not None
    assert lead.fired_at == world.fired_at("tenant-floods")
    assert told.misses.missed_at is not None
    assert lead.lead_seconds == pytest.approx(told.misses.missed_at - lead.fired_at)
    assert lead.lead_seconds > 0
    assert told.misses.missed_at == pytest.approx(recorded.slo_missed_at, abs=1.0)
