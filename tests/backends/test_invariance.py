"""The default model in each integer format: a row has the same bits whatever runs beside it and however it is cut."""

import os
from collections.abc import Iterator

import numpy as np
import pytest

from ekiden.backends.openvino.runner import OpenVINORunner
from ekiden.backends.openvino.weights.table import kernels_are_faster
from ekiden.models.resolve import ModelFiles
from ekiden.state.sequence import Sequence
from tests.backends.driving import ROTATED_FORMATS, Logits, load, sequence, step

LENGTHS = (2, 3, 31, 32, 33, 64, 65, 97, 130, 161)
BLOCKS = 8

BY_ITSELF = "int8-kernels" if kernels_are_faster() else "int8-rotated"
FORMATS = ("int4", *(("int8", *ROTATED_FORMATS) if "SOAK_FORMATS" in os.environ else (BY_ITSELF,)))
"""What is chosen by itself and what is furthest from it; `make soak` tries the others too."""


@pytest.fixture(scope="module", params=FORMATS)
def runner(request: pytest.FixtureRequest, smollm2_files: ModelFiles) -> Iterator[OpenVINORunner]:
    loaded = load(smollm2_files, weights=request.param, expand_weights="never")
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = np.random.default_rng(7)
    return [generator.integers(5, 49_000, length).tolist() for length in LENGTHS]


def placed(prompts: list[list[int]], shift: int = 0) -> list[Sequence]:
    """Each prompt in blocks of its own, which differ with ``shift``."""
    order = [(index + shift) % len(prompts) for index in range(len(prompts))]
    return [
        sequence(prompt, list(range(place * BLOCKS, (place + 1) * BLOCKS)))
        for prompt, place in zip(prompts, order, strict=True)
    ]


@pytest.fixture(scope="module")
def alone(runner, prompts) -> tuple[Logits, Logits]:
    """Each prompt by itself: the logits of its end, and of one decode of token 17 after it."""
    prefilled, decoded = {}, {}
    for index, each in enumerate(placed(prompts)):
        prefilled[index] = step(runner, [(each, len(each.token_ids))])[0]
        each.token_ids.append(17)
        decoded[index] = step(runner, [(each, 1)])[0]
    return prefilled, decoded


def assert_same(found: Logits, expected: Logits) -> None:
    different = [index for index in expected if not np.array_equal(found[index], expected[index])]
    assert not different, f"prompts {different} of {len(expected)} changed"


def test_the_self_test_passed_on_this_machine(runner):
    assert runner.info.details["self_test"] == "passed"


def test_together_as_alone(runner, prompts, alone):
    rows = placed(prompts, shift=3)
    assert_same(step(runner, [(each, len(each.token_ids)) for each in rows]), alone[0])
    for each in rows:
        each.token_ids.append(17)
    assert_same(step(runner, [(each, 1) for each in rows]), alone[1])


def test_in_another_order(runner, prompts, alone):
    rows = placed(prompts)[::-1]
    found = step(runner, [(each, len(each.token_ids)) for each in rows])
    assert_same({len(rows) - 1 - row: logits for row, logits in found.items()}, alone[0])


@pytest.mark.parametrize("chunk", [32, 64, 96])
def test_in_chunks_of_whole_blocks(chunk, runner, prompts, alone):
    rows = placed(prompts, shift=1)
    found: Logits = {}
    while unfinished := [index for index, each in enumerate(rows) if each.num_uncomputed_tokens]:
        plan = []
        for index in unfinished:
            left = rows[index].num_uncomputed_tokens
            plan.append((rows[index], left if left <= chunk + 1 else chunk))
        ended = step(runner, plan)
        found.update({unfinished[at]: logits for at, logits in ended.items()})
    assert_same(found, alone[0])


def test_decodes_beside_prefills(runner, prompts, alone):
    half = len(prompts) // 2
    rows = placed(prompts, shift=2)
    for each in rows[:half]:
        step(runner, [(each, len(each.token_ids))])
        each.token_ids.append(17)
    mixed = [row for pair in zip(rows[half:], rows[:half], strict=True) for row in pair]
    found = step(runner, [(each, each.num_uncomputed_tokens) for each in mixed])
    places = [place for pair in zip(range(half, 2 * half), range(half), strict=True) for place in pair]
    expected = {at: alone[0 if place >= half else 1][place] for at, place in enumerate(places)}
    assert_same(found, expected)


def test_after_swapping_out_and_back_elsewhere(runner, prompts, alone):
    rows = placed(prompts)
    step(runner, [(each, len(each.token_ids)) for each in rows])
    victim, bystander = rows[8], rows[9]
    held = victim.block_table[:5]
    step(runner, [(sequence([9] * 40, [200, 201]), 40)], swap_out=[(block, at) for at, block in enumerate(held)])
    step(runner, [(sequence([8] * 160, held), 160)])  # someone else uses the blocks meanwhile
    victim.block_table = (210, 214, 212, 213, 211)
    for each in (victim, bystander):
        each.token_ids.append(17)
    swap_in = list(enumerate(victim.block_table))
    found = step(runner, [(victim, 1), (bystander, 1)], swap_in=swap_in)
    assert_same({8: found[0], 9: found[1]}, {index: alone[1][index] for index in (8, 9)})


def test_among_many_other_decodes(runner, prompts, alone):
    rows = placed(prompts)
    step(runner, [(each, len(each.token_ids)) for each in rows])
    others = [sequence([index, index + 1, 5], [100 + index], computed=2) for index in range(64)]
    for each in rows:
        each.token_ids.append(17)
    found = step(runner, [(each, 1) for each in [*others[:30], *rows, *others[30:]]])
    assert_same({row - 30: logits for row, logits in found.items() if 30 <= row < 40}, alone[1])
