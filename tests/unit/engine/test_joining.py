"""When a newcomer joins: with the step that begins next, if a slot is free, and not a whole step later."""

import pytest

from ekiden.state.plan import BlockCopy
from tests.unit.evidence.directed import Directed


def first_turn_of(world: Directed, name: str) -> int:
    """How many turns passed until the request had a token."""
    for turn in range(1, 20):
        world.step()
        if any(update.request_id == name and update.token_ids for update in world.updates):
            return turn
    raise AssertionError(f"{name} got no token")


def test_a_newcomer_joins_the_next_step_beside_those_that_run() -> None:
    world = Directed(max_num_seqs=4)
    world.submit("long", output=30)
    world.step(3)
    world.submit("newcomer")
    assert first_turn_of(world, "newcomer") == 1


def test_a_slot_that_an_abort_gave_back_is_taken_in_the_same_turn() -> None:
    world = Directed(max_num_seqs=2)
    world.submit("left", output=30)
    world.submit("stays", output=30)
    world.step(3)
    world.core.abort("left")
    world.submit("newcomer")
    assert first_turn_of(world, "newcomer") == 1


@pytest.mark.parametrize("batching", ["static", "sequential"])
def test_a_batch_that_lets_nobody_in_stays_closed(batching: str) -> None:
    world = Directed(max_num_seqs=4, batching=batching)
    world.submit("long", output=10)
    world.step(3)
    world.submit("newcomer")
    assert first_turn_of(world, "newcomer") > 7


def test_blocks_on_their_way_back_are_not_forgotten_when_a_newcomer_comes() -> None:
    """A refill at a turn's end brings a sequence back from the swap space; at the next one's start there is another."""
    world = Directed(max_num_seqs=4, num_blocks=8, num_swap_blocks=40)
    copied: list[list[BlockCopy]] = []
    world.core.before_step = lambda formed: copied.append(list(formed.plan.swap_in))
    for name in ("a", "b", "c"):
        world.submit(name, prompt=14, output=60)
    met = 0
    while world.core.has_work:
        back = list(world.core._refilled.swap_in)
        if back:
            met += 1
            world.submit(f"newcomer {met}", output=2)
        world.step()
        world.core.check_integrity()
        if back:
            assert copied[-1][: len(back)] == back
    assert met > 0


def test_newcomers_that_wait_for_nobody_say_nothing_of_how_fast_a_queue_drains() -> None:
    """They would join in no time, and those in a later queue would be told that they wait for none."""
    world = Directed(max_num_seqs=4)
    world.submit("long", output=60)
    for number in range(20):
        world.step()
        world.submit(f"newcomer {number}", output=2)
    signals = world.core.refill.signals
    assert signals.drain_rate.joined >= 20
    assert signals.drain_rate.seconds_for(10) is None
    for number in range(30):
        world.submit(f"in a queue {number}", output=10)
    world.step(40)
    seconds = signals.drain_rate.seconds_for(10)
    begin, joined = world.now, signals.drain_rate.joined
    while signals.drain_rate.joined < joined + 10:
        world.step()
    assert seconds is not None
    assert 0.9 * (world.now - begin) <= seconds <= 2.0 * (world.now - begin)
