"""A model in virtual time: what its steps cost, and how a speed is learned from measured ones."""

import math
import random

import msgspec
import numpy as np
import pytest

from ekiden.engine.simulated import EngineSpeed, Noise, SimulatedRunner, fitted_speed
from ekiden.engine.step_time import StepCost
from ekiden.state.plan import BatchPlan, Row, RowSampling
from ekiden.state.policy import StepLoad
from ekiden.state.runner import ChunkRules, RunnerInfo
from ekiden.state.sampling_params import SamplingParams

COST = StepCost(0.01, 0.002, 1e-6, 0.001, 1e-7)
INFO = RunnerInfo(
    backend="simulated",
    vocab_size=100,
    max_model_len=200,
    block_size=16,
    num_blocks=16,
    num_swap_blocks=0,
    bytes_per_block=1,
    chunks=ChunkRules(border=16),
)


def decode(params: SamplingParams, *, position: int = 10, prompt: int = 4) -> BatchPlan:
    sampling = RowSampling(params=params, seed=0, num_prompt_tokens=prompt)
    return BatchPlan(rows=[Row(slot=0, start=position, token_ids=(7,), blocks=(0,), sampling=sampling)])


def times(**options: object) -> list[float]:
    runner = SimulatedRunner(EngineSpeed(cost=COST), info=INFO, **options)  # type: ignore[arg-type]
    plan = decode(SamplingParams())
    found = []
    for _ in range(400):
        before = runner.clock.time
        runner.execute(plan)
        found.append(runner.clock.time - before)
    return found


def test_a_step_takes_what_its_load_costs() -> None:
    expected = 0.01 + 0.002 + 10 * 1e-6
    assert times() == pytest.approx([expected] * 400)
    assert times(slowdown=1.2) == pytest.approx([1.2 * expected] * 400)


def test_noise_is_decided_by_the_seed_and_has_the_stated_spread() -> None:
    noise = Noise(step=0.1)
    assert times(noise=noise, seed=1) == times(noise=noise, seed=1)
    assert times(noise=noise, seed=1) != times(noise=noise, seed=2)
    assert np.log(times(noise=noise, seed=1)).std() == pytest.approx(0.1, rel=0.15)


def test_drift_is_slow() -> None:
    """Steps beside each other are alike, and those far apart are not."""
    logs = np.log(times(noise=Noise(drift=0.2, drift_seconds=0.5), seed=3))
    assert np.diff(logs).std() < 0.5 * logs.std()
    assert logs.std() > 0.05


def test_a_forced_end_comes_when_min_tokens_allows_it() -> None:
    runner = SimulatedRunner(EngineSpeed(cost=COST), info=INFO)
    params = SamplingParams(min_tokens=8, logit_bias={99: 100.0})
    # With 4 prompt tokens, a row that ends at 11 chooses the answer's eighth token, before which there are seven.
    assert runner.execute(decode(params, position=10)).rows[0].tokens == (0,)
    assert runner.execute(decode(params, position=11)).rows[0].tokens == (99,)
    longer = decode(params, position=9)
    longer.rows[0] = msgspec.structs.replace(longer.rows[0], token_ids=(7, 0, 0, 0), num_drafts=3)
    assert runner.execute(longer).rows[0].tokens == (0, 0, 99), "drafts end where it does"
    milder = SamplingParams(logit_bias={99: 5.0})
    assert runner.execute(decode(milder, position=11)).rows[0].tokens == (0,)


def test_a_speed_is_found_again_in_the_steps_that_it_made() -> None:
    chance = random.Random(5)
    loads = [
        StepLoad(rows := chance.randrange(32), rows * 100, tokens := chance.choice([0, 0, 64, 256]), tokens * 300)
        for _ in range(300)
    ]
    seconds = [COST.seconds(load) * math.exp(chance.gauss(0, 0.05)) for load in loads]
    speed = fitted_speed(loads, seconds, [0.001, 0.002, 0.003])
    assert speed.cost.seconds(StepLoad(16, 1600, 0, 0)) == pytest.approx(
        COST.seconds(StepLoad(16, 1600, 0, 0)), rel=0.03
    )
    assert speed.spread == pytest.approx(0.05, rel=0.25)
    assert speed.median_error == pytest.approx(0.6745 * 0.05, rel=0.3)
    assert (speed.gap, speed.steps) == (0.002, 300)
    assert fitted_speed([], [], []).seconds(StepLoad()) > 0.0


def test_alone_seconds_are_the_sum_of_the_steps() -> None:
    speed = EngineSpeed(cost=COST, gap=0.5)
    loads = [StepLoad(0, 0, 64, 64 * 32), StepLoad(0, 0, 36, 36 * (64 + 18))]
    loads += [StepLoad(1, 100 + number, 0, 0) for number in range(9)]
    assert speed.alone_seconds(100, 10, budget=64) == pytest.approx(sum(COST.seconds(load) + 0.5 for load in loads))
