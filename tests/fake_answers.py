"""What the fake model answers, worked out from the tokens alone: what its runner must give, whatever was scheduled."""

from collections.abc import Sequence

from ekiden.backends.fake import SEED, mix


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
