"""Ours and peers in turns, on the same prompts within a pass; peers that fail, and peers that say something else."""

import asyncio
import random
import statistics
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ekiden.errors import UserError
from ekiden.evaluation.benches.peer import OURS, Compared, HTTPLoad, in_process, lognormal_lengths, over_http
from ekiden.evaluation.benches.peers.arms import PeerEngine
from ekiden.evaluation.benches.peers.turns import WARM_UP, in_turns, ratios, spread
from ekiden.measure.figures import Figures
from tests.fake_answers import next_token
from tests.unit.evaluation.benches.test_bench import CONFIG, SHAPE, make_parts
from tests.unit.evaluation.benches.test_bench_serve import answer_with
from tests.unit.evaluation.loopback import LoopbackServer


class Peer:
    """Another engine on the same fake model, which gets one answer wrong, or fails, when told to."""

    def __init__(self, *, wrong: bool = False, fails: bool = False) -> None:
        self.calls: list[list[list[int]]] = []
        self.lineage: Figures = {}
        self._wrong, self._fails = wrong, fails

    def generate(self, prompts: list[list[int]], output_tokens: int) -> list[list[int]]:
        self.calls.append(prompts)
        if self._fails and len(self.calls) > 1:
            raise UserError("out of breath")
        answers = []
        for prompt in prompts:
            tokens = list(prompt)
            for _ in range(output_tokens):
                tokens.append(next_token(tokens, 1000))
            answers.append(tokens[len(prompt) :])
        if self._wrong:
            answers[0][-1] ^= 1
        return answers

    def losses(self, passages: list[list[int]]) -> list[float]:
        return []


def run(**peers: PeerEngine) -> Compared:
    return in_process(make_parts(), CONFIG, SHAPE, peers, rounds=2)


def test_a_pass_has_fresh_prompts_that_all_arms_share_and_tokens_are_compared():
    same, other = Peer(), Peer(wrong=True)
    figures = run(same=same, other=other)
    assert same.calls == [same.calls[0], *other.calls[1:]]
    assert len(same.calls) == 1 + 4  # the warm-up, then one a pass
    assert len({tuple(prompt) for prompts in same.calls for prompt in prompts}) == 5 * SHAPE.requests
    arms: Any = figures.arms
    assert (arms["same"]["same_tokens"], arms["same"]["compared_sequences"]) == (40, 40)
    assert arms["other"]["same_tokens"] == 36
    assert arms[OURS]["total_tokens_per_second"]["ratio"] == {"mean": 1.0, "min": 1.0, "max": 1.0}
    assert arms["same"]["total_tokens_per_second"]["passes"] == 4


def test_a_peer_that_fails_ends_its_own_arm():
    figures = run(steady=Peer(), tired=Peer(fails=True))
    assert figures.failures == {"tired": "out of breath"}
    assert set(figures.arms) == {OURS, "steady"}


def test_arms_go_forward_then_backward_and_the_warm_up_counts_for_nothing():
    order: list[tuple[str, int]] = []

    def arm(name: str):
        def once(number: int) -> Figures:
            order.append((name, number))
            return {"number": number}

        return once

    told: list[int] = []
    turns = in_turns({"a": arm("a"), "b": arm("b")}, rounds=1, on_run=lambda: told.append(1))
    assert [name for name, number in order if number != WARM_UP] == ["a", "b", "b", "a"]
    assert turns.passes == {"a": [{"number": 0}, {"number": 1}], "b": [{"number": 0}, {"number": 1}]}
    assert len(told) == 6


def test_our_own_failure_is_raised():
    def fails(number: int) -> Figures:
        raise UserError("ours")

    with pytest.raises(UserError, match="ours"):
        in_turns({"a": fails, "b": fails}, rounds=1)


def test_figures_are_medians_with_ranges_and_ratios_within_passes():
    assert spread([3.0, 1.0, 8.0]) == {"median": 3.0, "min": 1.0, "max": 8.0, "passes": 3}
    assert ratios([2.0, 8.0], [1.0, 1.0]) == {"mean": pytest.approx(4.0), "min": 2.0, "max": 8.0}
    assert ratios([1.0], [0.0]) is None


def test_lengths_are_lognormal_with_the_mean_asked_for_and_the_same_in_every_pass():
    first, second = (lognormal_lengths(64, 200, random.Random(seed)) for seed in (0, 1))
    assert first != second
    assert sorted(first) == sorted(second)
    assert statistics.fmean(first) == pytest.approx(200, rel=0.03)
    assert max(lognormal_lengths(1000, 90, random.Random(0))) <= 360 <= HTTPLoad(clients=1, requests=1).context
    assert statistics.median(first) < 180


@pytest.fixture
def servers() -> Iterator[list[str]]:
    """Two scripted servers, on a loop of their own, whose answers have four tokens."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    running = [LoopbackServer(answer_with(b'{"data":[{"id":"m"}]}', b"200 OK")) for _ in range(2)]
    yield [call(server.start()) for server in running]
    for server in running:
        call(server.stop())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_servers_are_asked_in_turns_and_answers_of_another_length_are_counted(servers):
    load = HTTPLoad(clients=2, requests=4, prompt_tokens=8, output_tokens=4)
    addresses = dict(zip((OURS, "peer"), servers, strict=True))
    figures = over_http(addresses, load, range(100), rounds=1, timeout=60, on_run=lambda: None)
    assert figures.failures == {}
    peer: Any = figures.arms["peer"]
    assert set(peer) == {
        "output_tokens_per_second",
        "total_tokens_per_second",
        "ttft_p50",
        "itl_p99",
        "failures",
        "wrong_lengths",
    }
    asked = lognormal_lengths(4, 4, random.Random(0))
    assert peer["wrong_lengths"] == 2 * sum(length != 4 for length in asked) > 0
