"""Logits of a prompt's own positions: the same bits as from shorter prompts, and no neighbour changes by a bit."""

import numpy as np
import pytest

from ekiden.backends.openvino.runner import PROMPT_LOGITS_LIMIT
from ekiden.sampling.logprobs import prompt_token_logprobs
from ekiden.state.request import TokenLogprobs
from ekiden.state.sequence import Sequence
from tests.backends.driving import LENGTH, execute, placed, step

TOP = 20
"""Alternatives reported at each position."""


@pytest.fixture
def lines(monkeypatch) -> list[np.ndarray]:
    """Copies of the logits at the positions of prompts, in the order in which the runner reads them."""
    seen: list[np.ndarray] = []

    def look(line: np.ndarray, token: int, num_top: int) -> TokenLogprobs:
        seen.append(line.copy())
        return prompt_token_logprobs(line, token, num_top)

    monkeypatch.setattr("ekiden.sampling.sampler.prompt_token_logprobs", look)
    return seen


def test_each_position_is_the_end_of_a_shorter_prompt(runner, prompt, lines):
    output, ends = execute(runner, [(placed(prompt, 0, prompt_logprobs=TOP), LENGTH)])
    found = output.rows[0].prompt_logprobs
    assert len(found) == len(lines) == LENGTH - 1
    assert LENGTH > PROMPT_LOGITS_LIMIT  # it took more than one pass
    whole = step(runner, [(placed(prompt, 1), LENGTH)])
    assert np.array_equal(ends[0], whole[0])
    for length in (2, 31, 32, 33, 64, 97, 130, 199):
        alone = step(runner, [(placed(prompt[:length], 1), length)])
        assert np.array_equal(lines[length - 1], alone[0]), length
        assert found[length - 1] == prompt_token_logprobs(alone[0], prompt[length], TOP), length


def test_in_chunks_and_beside_others(runner, prompt, lines):
    whole, _ = execute(runner, [(placed(prompt, 0, prompt_logprobs=TOP), LENGTH)])
    asked = placed(prompt, 1, prompt_logprobs=TOP)
    others = [placed(prompt[index : index + 40], 2 + index) for index in range(6)]
    for chunk in (64, 96, 40):
        beside = [(other, 40) for other in (others.pop(), others.pop())]
        output, _ = execute(runner, [*beside[:1], (asked, chunk), *beside[1:]])
        assert [len(result.prompt_logprobs) > 0 for result in output.rows] == [False, True, False]
        asked.prompt_logprobs += output.rows[1].prompt_logprobs
    assert tuple(asked.prompt_logprobs) == whole.rows[0].prompt_logprobs
    assert len(asked.prompt_logprobs) == LENGTH - 1
    assert len(lines) == 2 * (LENGTH - 1)
    assert np.array_equal(lines[: LENGTH - 1], lines[LENGTH - 1 :])


@pytest.mark.parametrize("decodes", [1, 7])
def test_neighbours_do_not_change_by_a_bit(runner, prompt, decodes):
    def neighbours(first: int) -> list[Sequence]:
        rows = [placed(prompt[index : index + 50], first + index) for index in range(decodes)]
        step(runner, [(row, 50) for row in rows])
        for row in rows:
            row.token_ids.append(17)
        return rows

    alone = step(runner, [(row, 1) for row in neighbours(0)])
    for sampling in ({}, {"prompt_logprobs": 0}):
        rows = [(row, 1) for row in neighbours(0)]
        _, ends = execute(runner, [*rows, (placed(prompt, 20, **sampling), LENGTH)])
        assert all(np.array_equal(ends[index], alone[index]) for index in range(decodes))
