"""Logits of a prompt's own positions: the same bits as from shorter prompts, and no neighbour changes by a bit."""

import numpy as np
import pytest

from ekiden.backends.openvino.runner import PROMPT_LOGITS_LIMIT, OpenVINORunner
from ekiden.models.resolve import ModelFiles
from ekiden.state.plan import BatchPlan
from ekiden.state.sequence import Sequence
from tests.backends.driving import load, sequence, step

LENGTH = 200
BLOCKS = 8


@pytest.fixture(scope="module")
def runner(smollm2_files: ModelFiles) -> OpenVINORunner:
    return load(smollm2_files)


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    tokens: list[int] = np.random.default_rng(3).integers(5, 49_000, LENGTH).tolist()
    return tokens


def placed(tokens: list[int], place: int, **sampling) -> Sequence:
    return sequence(tokens, list(range(place * BLOCKS, (place + 1) * BLOCKS)), **sampling)


def prompt_logits(runner: OpenVINORunner, rows: list[tuple[Sequence, int]]):
    """The logits at the positions of prompts, by row and position, and those of the rows' ends."""
    plan = BatchPlan()
    for each, count in rows:
        plan.add(each, count)
    found, ends = {}, {}
    for output in runner.execute(plan):
        assert len(output.logits) == len(output.rows) + len(output.prompt_positions)
        for row, logits in zip(output.rows, output.logits, strict=False):
            ends[row] = logits.copy()
        for at, logits in zip(output.prompt_positions, output.logits[len(output.rows) :], strict=True):
            found[at] = logits.copy()
    for each, count in rows:
        each.num_computed_tokens += count
    return found, ends


def test_each_position_is_the_end_of_a_shorter_prompt(runner, prompt):
    found, ends = prompt_logits(runner, [(placed(prompt, 0, prompt_logprobs=0), LENGTH)])
    assert sorted(found) == [(0, position) for position in range(LENGTH - 1)]
    assert LENGTH > PROMPT_LOGITS_LIMIT  # it took more than one pass
    whole = step(runner, [(placed(prompt, 1), LENGTH)])
    assert np.array_equal(ends[0], whole[0])
    for length in (2, 31, 32, 33, 64, 97, 130, 199):
        alone = step(runner, [(placed(prompt[:length], 1), length)])
        assert np.array_equal(found[0, length - 1], alone[0]), length


def test_in_chunks_and_beside_others(runner, prompt):
    whole, _ = prompt_logits(runner, [(placed(prompt, 0, prompt_logprobs=3), LENGTH)])
    asked = placed(prompt, 1, prompt_logprobs=3)
    others = [placed(prompt[index : index + 40], 2 + index) for index in range(6)]
    found: dict[int, np.ndarray] = {}
    for chunk in (64, 96, 40):
        beside = [(other, 40) for other in (others.pop(), others.pop())]
        logits, _ = prompt_logits(runner, [*beside[:1], (asked, chunk), *beside[1:]])
        assert {row for row, _ in logits} == {1}
        found |= {position: row for (_, position), row in logits.items()}
    assert sorted(found) == list(range(LENGTH - 1))
    assert all(np.array_equal(found[position], whole[0, position]) for position in found)


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
        _, ends = prompt_logits(runner, [*rows, (placed(prompt, 20, **sampling), LENGTH)])
        assert all(np.array_equal(ends[index], alone[index]) for index in range(decodes))
