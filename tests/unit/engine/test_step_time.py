"""The step-time model learns a machine's speed within a few steps of each kind."""

import random
from statistics import mean

import pytest

from ekiden.engine.step_time import StepTimeModel, fitted, usual
from ekiden.state.policy import StepLoad


def load(rows: int, prefill: int, context: int = 200) -> StepLoad:
    return StepLoad(
        decode_rows=rows, decode_context=rows * context, prefill_tokens=prefill, prefill_pairs=prefill * prefill // 2
    )


def seconds(of: StepLoad) -> float:
    """A machine much faster than the prior."""
    return 0.01 + 0.0005 * of.decode_rows + 1e-6 * of.decode_context + 0.0004 * of.prefill_tokens


def taught(seed: int) -> StepTimeModel:
    """A model that has seen 20 steps without and 16 with prefill chunks, with 5% noise."""
    model, rng = StepTimeModel(), random.Random(seed)
    for number in range(36):
        prefill = 0 if number < 20 else rng.choice([64, 256, 448])
        step = load(rng.randrange(1, 64), prefill, rng.randrange(50, 900))
        model.observe(step, seconds(step) * rng.lognormvariate(0.0, 0.05))
    return model


@pytest.mark.parametrize("step", [load(8, 0), load(60, 0), load(8, 128), load(60, 448)])
def test_it_is_close_after_a_few_steps_of_each_kind(step: StepLoad) -> None:
    errors = [abs(taught(seed).predict(step).p50 / seconds(step) - 1) for seed in range(20)]
    untaught = abs(StepTimeModel().predict(step).p50 / seconds(step) - 1)
    assert mean(errors) < min(0.3, untaught / 2)


def test_it_tells_what_prefill_chunks_cost() -> None:
    chunk = load(8, 448)
    shares = [taught(seed).prefill_share(chunk) for seed in range(20)]
    assert mean(shares) == pytest.approx(0.0004 * 448 / seconds(chunk), abs=0.08)
    assert taught(0).prefill_share(load(8, 0)) == 0.0


def test_it_follows_a_machine_that_slows_down() -> None:
    model = StepTimeModel()
    step = load(32, 0)
    for factor in (1.0, 3.0):
        for _ in range(150):
            model.observe(step, factor * seconds(step))
        assert model.predict(step).p50 == pytest.approx(factor * seconds(step), rel=0.2)


def test_recorded_steps_give_the_costs_that_made_them() -> None:
    rng = random.Random(3)
    steps = [load(rng.randrange(1, 64), rng.choice([0, 0, 64, 448]), rng.randrange(50, 900)) for _ in range(60)]
    cost = fitted(steps, [seconds(step) for step in steps])
    for step in steps:
        assert cost.seconds(step) == pytest.approx(seconds(step), rel=1e-6)
    assert cost.prefill_seconds(load(8, 448)) == pytest.approx(0.0004 * 448, rel=1e-4)


def test_no_load_makes_a_recorded_step_cheaper() -> None:
    """Steps with more rows happened to be faster; without prefill chunks nothing is known of them."""
    steps = [load(rows, 0) for rows in (2, 4, 8, 16)]
    cost = fitted(steps, [0.020, 0.019, 0.018, 0.017])
    assert min(cost) == 0.0
    assert cost.seconds(load(100, 0)) == pytest.approx(0.0185, rel=1e-3)
    assert fitted([], []) == (0.0, 0.0, 0.0, 0.0, 0.0)


def test_a_step_that_took_longer_once_teaches_nothing_when_its_kind_is_known() -> None:
    model, step = StepTimeModel(), load(32, 0)
    for _ in range(40):
        model.observe(step, seconds(step))
    before, known = model.predict(step), model.observed
    for _ in range(40):
        model.observe(step, seconds(step) + 0.5, longer=True)
    assert (model.predict(step), model.observed) == (before, known)


def test_it_learns_from_such_steps_while_nothing_else_tells_what_prompts_cost() -> None:
    """One client, each of whose prompts is of a length that never was."""
    model, source = StepTimeModel(), random.Random(1)
    for _ in range(40):
        model.observe(load(1, 0), seconds(load(1, 0)))
        prompt = load(0, source.randrange(100, 500))
        model.observe(prompt, seconds(prompt) + 0.009, longer=True)
    assert model.predict(load(0, 300)).p50 == pytest.approx(seconds(load(0, 300)), rel=0.2)


def test_a_fit_leaves_out_what_took_longer_of_kinds_that_are_known() -> None:
    decodes, prompts = [load(8, 0)] * 30, [load(8, 64)] * 4
    longer = [number < 3 for number in range(30)] + [True] * 4
    assert usual(decodes + prompts, longer) == [*range(3, 30), *range(30, 34)]
