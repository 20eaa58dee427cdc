"""The search for the pass limit, on models whose rounding changes where the test says."""

from dataclasses import replace

import numpy as np
import pytest

from ekiden.backends.openvino.kv_pool import KVPool
from ekiden.backends.openvino.paged_model import Inputs
from ekiden.backends.openvino.passes import NO_LIMITS, PassLimits
from ekiden.backends.openvino.self_test import SelfTest, SelfTestResult


class Rounding:
    """Logits are a function of the row's last token and position; ``changes(tokens)`` and ``head_changes(logits)`` add
    a last bit."""

    def __init__(self, changes, seconds=lambda tokens: tokens * 1e-3, head_changes=lambda logits: False) -> None:
        self.pool = KVPool(8, 0, 1, {}, [], [])
        self.changes = changes
        self.head_changes = head_changes
        self.seconds = seconds
        self.sizes: list[int] = []

    def compute(self, inputs: Inputs) -> tuple[np.ndarray, float]:
        tokens = len(inputs["input_ids"])
        self.sizes.append(tokens)
        rows = inputs["state_rows"][inputs["logit_rows"]]
        base = inputs["input_ids"][rows] * 100 + inputs["position_ids"][rows]
        logits = np.repeat(base.astype(np.float32)[:, None], 4, axis=1)
        if self.changes(tokens) or self.head_changes(len(rows)):
            logits = np.nextafter(logits, np.inf)
        return logits, self.seconds(tokens)

    def states(self) -> np.ndarray:
        raise AssertionError("the self-test compares logits")

    def close(self) -> None:
        self.sizes.clear()


def started(model: Rounding, largest=512) -> SelfTest:
    return SelfTest(model, vocab_size=1000, most_tokens=largest, most_logits=128)


def search(changes, *, strict=True, largest=512, **options) -> tuple[SelfTestResult, Rounding]:
    model = Rounding(changes, **options)
    return started(model, largest).calibrate(strict=strict), model


@pytest.mark.parametrize("border", [43, 63, 64, 65, 80, 100, 128, 129, 255, 300, 511])
def test_a_border_is_found_to_within_a_step_and_never_passed(border):
    result, _ = search(lambda tokens: tokens > border)
    assert result.failure is None
    assert result.limits.tokens is not None
    assert border - 8 <= result.limits.tokens <= border


@pytest.mark.parametrize("largest", [96, 128, 512, 1000])
def test_no_border_means_no_limit(largest):
    result, model = search(lambda tokens: False, largest=largest)
    assert (result.limits, result.failure) == (NO_LIMITS, None)
    assert max(model.sizes) == largest


def test_the_known_border_takes_few_passes():
    result, model = search(lambda tokens: tokens > 80)
    assert result.limits.tokens == 80
    assert sum(model.sizes) < 900


def test_a_machine_that_changes_from_the_start_fails():
    result, _ = search(lambda tokens: tokens > 40)
    assert result.failure is not None


def test_a_second_border_below_the_first_is_noticed():
    result, _ = search(lambda tokens: tokens == 43 or tokens > 80)
    assert result.failure == "a pass of 43 tokens rounds differently from one of 2"


def test_chunks_that_round_differently_fail():
    result, _ = search(lambda tokens: tokens == 8)
    assert result.failure == "a prompt in chunks rounds differently"


def test_relaxed_keeps_a_limit_only_where_it_is_faster():
    slower_above = {"seconds": lambda tokens: tokens * (1e-3 if tokens <= 80 else 2e-3)}
    assert search(lambda tokens: tokens > 80, strict=False, **slower_above)[0].limits.tokens == 80
    assert search(lambda tokens: tokens > 80, strict=False)[0].limits.tokens == 80  # no faster: nothing to gain
    faster_above = {"seconds": lambda tokens: tokens * (1e-3 if tokens <= 80 else 5e-4)}
    assert search(lambda tokens: tokens > 80, strict=False, **faster_above)[0].limits.tokens is None


@pytest.mark.parametrize("border", [2, 30, 64, 80, 127])
def test_a_border_of_the_head_limits_the_logits_of_a_pass(border):
    result, _ = search(lambda tokens: False, head_changes=lambda logits: logits > border)
    assert result.failure is None
    assert result.limits.tokens is None
    assert result.limits.logits is not None
    assert border - 8 <= result.limits.logits <= border


def test_a_border_of_the_head_beyond_what_a_pass_may_hold_is_no_limit():
    result, _ = search(lambda tokens: tokens > 80, head_changes=lambda logits: logits > 80)
    assert result.limits == PassLimits(80, None)
    result, _ = search(lambda tokens: False, head_changes=lambda logits: logits > 128)
    assert result.limits == NO_LIMITS


def test_an_earlier_result_is_held_against_the_machine_in_two_passes():
    known, model = search(lambda tokens: tokens > 80, head_changes=lambda logits: logits > 64)
    before = len(model.sizes)
    test = started(model)
    assert test.holds(known)
    assert model.sizes[before:] == [36, 80]
    assert not test.holds(replace(known, limits=PassLimits(96, 64)))
    assert not test.holds(replace(known, limits=PassLimits(80, 72)))
    assert not test.holds(replace(known, limits=NO_LIMITS))


def test_an_earlier_result_does_not_hold_where_every_pass_gives_other_bits():
    known, _ = search(lambda tokens: tokens > 80)
    other = started(Rounding(lambda tokens: True))
    assert not other.holds(known)
    assert other.calibrate(strict=True).bits != known.bits


class Quantised(Rounding):
    """As where keys are quantised by the block: what a pass writes besides a token changes the token's own bits."""

    def compute(self, inputs: Inputs) -> tuple[np.ndarray, float]:
        logits, seconds = super().compute(inputs)
        several = np.count_nonzero(inputs["past_lens"]) > 1
        return np.nextafter(logits, np.inf) if several else logits, seconds


def test_where_drafts_change_bits_none_are_made():
    assert search(lambda tokens: False)[0].drafts
    result = started(Quantised(lambda tokens: False)).calibrate(strict=True)
    assert (result.drafts, result.failure) == (False, None)
