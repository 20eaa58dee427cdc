"""Runs in turns: ours, peer, peer, ours, on the same prompts within a pair."""

from ekiden.evaluation.benches.peer import bench_peer, pair_rows
from tests.fake_answers import next_token
from tests.unit.evaluation.benches.test_bench import CONFIG, SHAPE, make_parts


class Peer:
    """Another engine on the same fake model, which gets one answer wrong when told to."""

    def __init__(self, wrong: bool = False) -> None:
        self.calls: list[list[list[int]]] = []
        self._wrong = wrong

    def generate(self, prompts: list[list[int]], output_tokens: int) -> list[list[int]]:
        self.calls.append(prompts)
        answers = []
        for prompt in prompts:
            tokens = list(prompt)
            for _ in range(output_tokens):
                tokens.append(next_token(tokens, 1000))
            answers.append(tokens[len(prompt) :])
        if self._wrong:
            answers[0][-1] ^= 1
        return answers


def test_pairs_share_their_prompts_and_are_compared_token_by_token():
    peer, done = Peer(), []
    figures = bench_peer(make_parts(), CONFIG, SHAPE, peer.generate, rounds=2, on_run=lambda: done.append(1))
    assert len(done) == 8
    assert len(peer.calls) == 1 + 4  # the warm-up, then one a pair
    assert len({tuple(prompt) for prompts in peer.calls for prompt in prompts}) == 5 * SHAPE.requests
    assert (figures["pairs"], figures["same_tokens"], figures["compared_sequences"]) == (4, 40, 40)
    ratio, low, high = figures["ratio"], figures["ratio_min"], figures["ratio_max"]
    assert isinstance(ratio, float)
    assert isinstance(low, float)
    assert isinstance(high, float)
    assert low <= ratio <= high
    assert [row[0] for row in pair_rows(figures)] == ["1", "2", "3", "4"]


def test_a_peer_that_says_something_else_is_seen():
    peer = Peer(wrong=True)
    figures = bench_peer(make_parts(), CONFIG, SHAPE, peer.generate, rounds=1, on_run=lambda: None)
    assert (figures["same_tokens"], figures["compared_sequences"]) == (18, 20)
