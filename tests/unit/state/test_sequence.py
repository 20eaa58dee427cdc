"""Status changes follow the table, and a breach tells the story so far."""

import pytest

from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams
from ekiden.state.sequence import TRANSITIONS, IllegalTransition, Sequence, Status


def make_sequence() -> Sequence:
    request = Request(request_id="a", prompt_token_ids=(1,), sampling=SamplingParams(), arrival_time=0.0)
    return Sequence(
        request=request, seed=0, token_ids=[1], num_prompt_tokens=1, max_total_tokens=9, stop_token_ids=frozenset()
    )


def test_an_illegal_change_tells_the_story() -> None:
    sequence = make_sequence()
    sequence.move_to(Status.RUNNING)
    sequence.move_to(Status.FINISHED)
    with pytest.raises(IllegalTransition, match="waiting -> running -> finished cannot become running"):
        sequence.move_to(Status.RUNNING)


def test_every_status_can_end_and_the_end_is_final() -> None:
    assert TRANSITIONS[Status.FINISHED] == frozenset()
    assert all(Status.FINISHED in after for status, after in TRANSITIONS.items() if status is not Status.FINISHED)
