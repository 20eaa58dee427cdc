"""A failed assertion becomes a breach of the invariant that was being checked; nothing else does."""

import pytest

from ekiden.state.invariants import Invariant, InvariantBreach, checking


def test_a_failed_assertion_is_a_breach_by_name() -> None:
    with pytest.raises(InvariantBreach, match="^BLOCKS: block 3 is lost") as caught, checking(Invariant.BLOCKS):
        raise AssertionError("block 3 is lost")
    assert caught.value.invariant is Invariant.BLOCKS


def test_the_innermost_check_gives_the_name() -> None:
    with pytest.raises(InvariantBreach) as caught, checking(Invariant.PLACES), checking(Invariant.BLOCKS):
        raise AssertionError
    assert caught.value.invariant is Invariant.BLOCKS


def test_a_crash_is_no_breach() -> None:
    with pytest.raises(KeyError), checking(Invariant.PLACES):
        raise KeyError("r1")
