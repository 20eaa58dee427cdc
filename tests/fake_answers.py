"""What the fake model answers, worked out from the tokens alone: what its runner must give, whatever was scheduled."""

from collections.abc import Sequence

import numpy as np

from ekiden.backends.fake import SEED, hidden_state, mix
from ekiden.state.request import Pooling


def next_token(token_ids: Sequence[int], vocab_size: int) -> int:
    """The fake model's greedy token after ``token_ids``."""
    return answer_to(token_ids, vocab_size, 1)[0]


def answer_to(token_ids: Sequence[int], vocab_size: int, count: int) -> list[int]:
    """The first ``count`` tokens of the fake model's greedy answer to ``token_ids``."""
    state = SEED
    for token in token_ids:
        state = mix(state, token)
    answer: list[int] = []
    while len(answer) < count:
        answer.append(state % vocab_size)
        state = mix(state, answer[-1])
    return answer


def pooled_states(token_ids: Sequence[int], pooling: Pooling) -> bytes:
    """The vector of the fake model's hidden states for ``token_ids``."""
    state, states = SEED, []
    for token in token_ids:
        state = mix(state, token)
        states.append(hidden_state(state).astype(np.float64))
    vector = states[-1] if pooling is Pooling.LAST else sum(states[1:], states[0]) / len(states)
    return vector.astype(np.float32).tobytes()


def likely_tokens(token_ids: Sequence[int], vocab_size: int, first: int) -> list[bool]:
    """For each token from the one with the index ``first`` on: whether it is what the fake model says there."""
    return [next_token(token_ids[:at], vocab_size) == token_ids[at] for at in range(first, len(token_ids))]
