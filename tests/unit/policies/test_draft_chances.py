"""What a draft's chance rests on."""

from hypothesis import given
from hypothesis import strategies as st

from ekiden.policies.draft_chances import GROUNDS, ground_of
from ekiden.state.drafting import BY_GRAMMAR, BY_MODEL


@given(st.integers(1, 40), st.integers(0, 16))
def test_a_draft_further_on_has_no_weaker_ground(match: int, place: int) -> None:
    assert 2 <= ground_of(match, place) <= ground_of(match, place + 1) < GROUNDS
    assert ground_of(BY_MODEL, place) != ground_of(BY_GRAMMAR, place)
