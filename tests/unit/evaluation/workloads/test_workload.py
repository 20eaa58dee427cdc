"""Prompts and arrivals are reproducible, and the demo's prompts make the point they are chosen for."""

import pytest

from ekiden.evaluation.workloads.synthetic import demo_prompts, poisson_arrivals, synthetic_prompts


def test_synthetic_prompts_have_the_length_asked_for_and_repeat_by_seed():
    prompts = synthetic_prompts(5, 40, seed=3)
    assert [len(p) for p in prompts] == [40] * 5
    assert len({tuple(p) for p in prompts}) == 5
    assert prompts == synthetic_prompts(5, 40, seed=3)
    assert prompts != synthetic_prompts(5, 40, seed=4)


def test_synthetic_prompts_fit_a_small_vocabulary():
    assert all(0 <= token < 64 for token in synthetic_prompts(1, 500, seed=0, vocab_size=64)[0])


def test_poisson_arrivals_rise_and_keep_the_rate():
    arrivals = poisson_arrivals(4_000, 8.0, seed=1)
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(500, rel=0.1)
    assert arrivals == poisson_arrivals(4_000, 8.0, seed=1)


def test_the_demo_mixes_one_long_answer_into_each_batch_of_eight():
    prompts = demo_prompts()
    assert len({prompt.id for prompt in prompts}) == 24
    for start in (0, 8, 16):
        limits = sorted(prompt.max_tokens for prompt in prompts[start : start + 8])
        assert limits[-1] >= 3 * limits[-2]
