"""Learning a machine's speed from a run: on a fake engine in virtual time the known costs are found."""

import pytest

from ekiden.engine.simulated import SimulatedRunner, simulate
from ekiden.errors import UserError
from ekiden.evaluation.calibrate import SpeedRecorder, calibrate
from ekiden.evaluation.load.requests import requests_of
from ekiden.evaluation.load.simulated_subject import simulated_core, simulated_prompts
from ekiden.state.policy import StepLoad
from tests.unit.engine.fake_parts import make_config, make_fake_parts
from tests.unit.evaluation.simulated_arms import INFO, SPEED, config, workload


def test_the_costs_of_a_simulated_machine_are_found() -> None:
    recorder, offered = SpeedRecorder(), workload(60, rate=12.0)
    model = SimulatedRunner(SPEED, info=INFO)
    core = simulated_core(config(), model, model, recorder=recorder)
    prompts = simulated_prompts(offered, vocab_size=INFO.vocab_size)
    simulate(core, model.clock, requests_of(offered, prompts, 0.0), lambda result: None, gap=SPEED.gap)
    found = recorder.speed()
    assert found.steps == model.steps
    assert found.gap == pytest.approx(SPEED.gap)
    assert found.median_error < 1e-6
    assert found.spread == pytest.approx(0.0, abs=1e-6)
    for load in (StepLoad(8, 800, 0, 0), StepLoad(2, 60, 96, 96 * 48)):
        assert found.seconds(load) == pytest.approx(SPEED.seconds(load), rel=1e-4)


def test_a_short_run_on_a_loaded_engine_measures_every_step() -> None:
    settings = make_config(max_num_seqs=4)
    parts = make_fake_parts(settings)
    found = calibrate(parts, settings)
    assert found.steps >= 20
    assert found.cost.seconds(StepLoad(4, 400, 64, 64 * 32)) >= 0.0


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(UserError, match="0 steps were measured; a step-time model needs 20"):
        SpeedRecorder().speed()
