"""Passes are filled up to the size of the one before, for no more tokens than a change of size is worth."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekiden.backends.openvino.passes import DUMMY, Pass
from ekiden.backends.openvino.runner import OpenVINORunner
from ekiden.backends.openvino.sizes import PassSizes, tokens_per_change
from ekiden.models.architectures.spec import ModelSpec, RopeSpec
from tests.backends.driving import execute, sequence
from tests.backends.test_runner import SCRATCH, StandIn, model, runner

__all__ = ["model", "runner"]

WORTH = 16
SMOLLM2 = ModelSpec(
    family="llama",
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    rms_norm_eps=1e-5,
    max_position_embeddings=2048,
    rope=RopeSpec(inverse_frequencies=(1.0,) * 32),
)


def of(tokens: int) -> Pass:
    return Pass(list(range(tokens)), [5] * tokens, [1] * tokens, list(range(tokens)), tokens)


def filled(sizes: list[int], worth: int = WORTH) -> list[tuple[int, bool]]:
    """The sizes that passes get in turn, and whether each was new."""
    found, passes = PassSizes(worth), [of(size) for size in sizes]
    return [(each.tokens, new) for each in passes for new in [found.fill(each)]]


def test_a_pass_with_few_tokens_less_keeps_the_size() -> None:
    assert filled([32, 31, 30, 32]) == [(32, True), (32, False), (32, False), (32, False)]


def test_a_larger_pass_and_a_much_smaller_one_change_it() -> None:
    assert filled([32, 40, 8]) == [(32, True), (40, True), (8, True)]


def test_a_size_that_was_there_before_is_not_new() -> None:
    assert filled([32, 60, 32]) == [(32, True), (60, True), (32, False)]


def test_it_stops_when_the_change_would_have_cost_as_much() -> None:
    assert [size for size, _ in filled([32] + [30] * 10)] == [32] * 9 + [30] * 2


def test_without_a_worth_nothing_is_filled() -> None:
    assert [size for size, _ in filled([32, 31, 30], worth=0)] == [32, 31, 30]


@given(st.lists(st.integers(2, 80), min_size=1, max_size=60), st.integers(0, 40))
def test_it_never_costs_twice_what_changes_alone_would(sizes: list[int], worth: int) -> None:
    passes, found = [of(size) for size in sizes], PassSizes(worth)
    for each in passes:
        found.fill(each)
    now = [each.tokens for each in passes]
    changes = sum(before != after for before, after in zip([0, *now], now, strict=False))
    alone = sum(before != after for before, after in zip([0, *sizes], sizes, strict=False))
    assert changes <= alone
    assert sum(now) - sum(sizes) <= worth * changes
    assert max(now) == max(sizes), "no pass is larger than one that was planned"
    for each in passes:
        assert [row for row in each.rows if row != DUMMY] == each.wanted, "nothing is asked of the dummy rows"


def test_the_runner_fills_and_tells(runner: OpenVINORunner, model: StandIn) -> None:
    filling = OpenVINORunner(model, runner.info, limits=runner.limits, sizes=PassSizes(WORTH))
    rows = [[(sequence([7, 100 + row], [0], computed=1), 1) for row in range(count)] for count in (9, 6)]
    first, _ = execute(filling, rows[0])
    second, logits = execute(filling, rows[1])
    assert (first.new_sizes, first.padding_rows) == (1, 0)
    assert (second.new_sizes, second.padding_rows, len(second.rows)) == (0, 3, 6)
    assert [logits[row].argmax() for row in range(6)] == [100 + row for row in range(6)]
    inputs = model.passes[-1]
    assert inputs["block_indices"].tolist() == [0] * 6 + [SCRATCH] * 3
    assert inputs["past_lens"].tolist() == [1] * 6 + [0] * 3


@pytest.mark.parametrize(("integer_products", "tokens"), [(True, 15), (False, 3)])
def test_a_change_is_worth_fewer_tokens_where_they_cost_more(integer_products: bool, tokens: int) -> None:
    assert tokens_per_change(SMOLLM2, integer_products=integer_products) == tokens
    larger = replace(SMOLLM2, hidden_size=2048, intermediate_size=8192)
    assert tokens_per_change(larger, integer_products=integer_products) <= 1
    assert tokens_per_change(None, integer_products=integer_products) == 0
