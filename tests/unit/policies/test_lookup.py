"""Guesses by lookup: the longest agreement wins, and asking often or rarely gives the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekiden.policies import lookup
from ekiden.policies.lookup import Lookup
from ekiden.state.drafting import NO_GUESS, Ask, Guess

texts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def guess(tokens: list[int], limit: int = 4, drafter: Lookup | None = None) -> Guess:
    return (Lookup() if drafter is None else drafter).guess(Ask("r", tokens, limit, 0))


def agreement(tokens: list[int], place: int) -> int:
    """How many tokens up to ``place`` equal the newest ones."""
    newest = len(tokens) - 1
    return next((m for m in range(place + 1) if tokens[place - m] != tokens[newest - m]), place + 1)


def test_a_text_that_repeats_itself_goes_on_as_before() -> None:
    assert guess([1, 2, 3, 4, 5, 9, 1, 2, 3]) == Guess([4, 5, 9, 1], match=3)
    assert guess([1, 2, 3, 4, 5]) == NO_GUESS
    assert guess([7]) == NO_GUESS
    assert guess([7, 7], limit=3) == Guess([7, 7, 7], match=1)


def test_the_longest_agreement_wins_and_of_equals_the_newest() -> None:
    assert guess([1, 2, 3, 40, 9, 2, 3, 50, 8, 1, 2, 3], limit=1) == Guess([40], match=3)
    assert guess([5, 2, 3, 40, 9, 2, 3, 50, 8, 1, 2, 3], limit=1) == Guess([50], match=2)


def test_a_loop_is_guessed_beyond_its_end() -> None:
    assert guess([1, 2, 3, 1, 2, 3, 1], limit=8).tokens == [2, 3, 1, 2, 3, 1, 2, 3]


@given(texts, st.integers(1, 6))
def test_a_guess_followed_the_longest_agreement_there_is(tokens: list[int], limit: int) -> None:
    found = guess(tokens, limit)
    before = range(len(tokens) - 1)
    best = max((agreement(tokens, place) for place in before), default=0)
    assert (best == 0) == (found == NO_GUESS)
    if best:
        assert len(found.tokens) == limit
        assert 1 <= found.match <= best
        told = [place for place in before if agreement(tokens, place) >= found.match]
        assert any(tokens[place + 1] == found.tokens[0] for place in told)
        pair = tokens[-2:]
        if sum(tokens[place - 1 : place + 1] == pair for place in before if place) <= lookup.PLACES:
            assert found.match == best


@given(texts, st.lists(st.booleans(), min_size=60, max_size=60))
def test_how_often_it_is_asked_changes_nothing(tokens: list[int], asked: list[bool]) -> None:
    drafter = Lookup()
    for count in range(1, len(tokens)):
        if asked[count]:
            assert guess(tokens[:count], drafter=drafter) == guess(tokens[:count])
    assert guess(tokens, drafter=drafter) == guess(tokens)


def test_a_long_prompt_is_read_in_parts_and_old_tokens_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "MOST_TOKENS", 100)
    monkeypatch.setattr(lookup, "AT_ONCE", 30)
    tokens, drafter = [*range(1000, 1090), 1040, 1041], Lookup()
    assert [guess(tokens, drafter=drafter) for _ in range(3)] == [NO_GUESS] * 3
    assert guess(tokens, drafter=drafter).tokens == [1042, 1043, 1044, 1045]
    for token in range(2000, 2400):
        tokens.append(token)
        guess(tokens, drafter=drafter)
        index = drafter._indexes["r"]
        assert len(index._pairs) <= len(index._links) <= 200
    tokens += [2390, 2391]
    while (found := guess(tokens, drafter=drafter)) == NO_GUESS:
        pass
    assert found.tokens == [2392, 2393, 2394, 2395]


def test_what_is_known_of_a_request_ends_with_it() -> None:
    drafter = Lookup()
    guess([1, 2, 1], drafter=drafter)
    drafter.forget("r")
    drafter.forget("another")
    assert len(drafter) == 0
