"""The production engine core over many seeded worlds; a failure prints the seed that shows it again."""

import os
from collections import Counter
from functools import cache

import pytest

from ekiden.config import BATCHING
from tests.simulation.simulator import Outcome, Simulation, shrink, simulate
from tests.simulation.trouble import Kind

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "500"))
BATCH = 100
KEPT = 200


@cache
def kept(seed: int) -> Outcome:
    """One of the first ``KEPT`` worlds, run once for all tests that look at it."""
    return simulate(seed)


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_every_invariant_holds_at_every_step(first: int) -> None:
    for seed in range(first, min(first + BATCH, SEEDS)):
        try:
            (kept if seed < KEPT else simulate)(seed)
        except Exception as error:
            story = f"{type(error).__name__}: {error}"
            raise AssertionError(f"simulate({seed}, num_requests={shrink(seed)}) breaks: {story}") from error


def test_the_worlds_are_hard_enough() -> None:
    """A simulation that never preempts, refuses or fails proves nothing."""
    seen: Counter[str] = Counter()
    for seed in range(KEPT):
        outcome = kept(seed)
        seen["preempted"] += outcome.preemptions > 0
        seen["prefix hits"] += outcome.prefix_hits > 0
        seen[outcome.world.batching] += 1
        seen["copies lost"] += outcome.lost_copies > 0
        seen["run again"] += outcome.run_again > 0
        seen.update(outcome.troubles)
        seen.update(outcome.finished)
        seen.update(outcome.refused)
    for kind in (
        "preempted",
        "prefix hits",
        "stop",
        "length",
        "abort",
        "error",
        "deadline",
        "queue_full_requests",
        "copies lost",
        "run again",
        *Kind,
        *BATCHING,
    ):
        assert seen[kind] >= (2 if kind == "copies lost" else 5), f"{kind} happened in too few worlds: {seen}"


def test_the_same_seed_gives_the_same_decisions() -> None:
    for seed in range(50):
        assert simulate(seed).log == kept(seed).log != []


def test_every_invariant_holds_while_the_controls_change() -> None:
    """Policies, orders, slots, budgets and limits change at random moments, with padding rows and preempted ones."""
    outcomes: Counter[str] = Counter()
    for seed in range(SEEDS // 4):
        world = Simulation(seed, change_rate=0.2)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"Simulation({seed}, change_rate=0.2): {type(error).__name__}: {error}") from error
        outcomes.update("refused" if isinstance(answer, str) else "made" for answer in world.answers)
        outcomes["expired"] += world.core.controls.now.epoch > sum(not isinstance(a, str) for a in world.answers)
    assert min(outcomes["made"], 10 * outcomes["refused"]) >= SEEDS, outcomes
    assert outcomes["expired"] >= SEEDS // 20, outcomes
