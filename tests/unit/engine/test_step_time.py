"""The step-time model learns a machine's speed within a few steps of each kind."""

import random
from statistics import mean

import pytest

from ekiden.engine.step_time import StepTimeModel, fitted
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
