"""Chunks under an inter-token target: the same as by trying one size after another, with far fewer predictions."""

import random
from dataclasses import dataclass, fields

from hypothesis import given, settings
from hypothesis import strategies as st

from ekiden.backends.fake import FakeRunner
from ekiden.config import CacheConfig, Config, SchedulerConfig, controls_of
from ekiden.engine.engine_core import EngineCore
from ekiden.engine.simulated import EngineSpeed, SimulatedRunner, simulate
from ekiden.engine.step_time import StepCost
from ekiden.stages.formation import Formation, chunk_size
from ekiden.state.policy import StepLoad, StepTimePredictor, TimeRange
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams
from ekiden.state.sequence import Sequence
from tests.steps import StepView, StepWatcher

BLOCK = 8
SPEED = EngineSpeed(cost=StepCost(0.01, 0.001, 1e-6, 0.001, 1e-6))


@dataclass(slots=True)
class Counting:
    """Counts how often a step's time is predicted."""

    of: StepTimePredictor
    count: int = 0

    def predict(self, load: StepLoad) -> TimeRange:
        self.count += 1
        return self.of.predict(load)


class OneSizeAfterAnother(Formation):
    """Finds the same chunks by trying all sizes, the largest first."""

    def _within_target(self, step, sequence: Sequence, planned: int) -> int:
        computed, prompt, chunk = sequence.num_computed_tokens, sequence.num_prompt_tokens, planned
        while chunk and not self._keeps_target(step.load_with(computed, chunk)):
            smaller = chunk_size(computed=computed, prompt=prompt, budget=chunk - 1, rules=self.chunks)
            if smaller == 0 and step.prompts == 0:
                return chunk
            chunk = smaller
        return chunk


class Chunks(StepWatcher):
    """Keeps what each step computed and left out, and why."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[object, ...]] = []

    def on_step(self, view: StepView) -> None:
        rows = tuple((row.slot, row.start, len(row.token_ids)) for row in view.formed.plan.rows)
        left_out = tuple((sequence.request_id, reason) for sequence, reason in view.formed.left_out)
        self.seen.append((rows, left_out))


def run(formation: type[Formation], seed: int, target_ms: float, prompts: int) -> tuple[list[tuple[object, ...]], int]:
    """What the steps of an overloaded engine were, and how often their time was predicted to choose chunks."""
    scheduler = SchedulerConfig(
        max_num_seqs=16, max_num_batched_tokens=128, target_itl_ms=target_ms, max_concurrent_prefills=prompts
    )
    config, watch = Config(scheduler=scheduler, cache=CacheConfig(block_size=BLOCK)), Chunks()
    fake = FakeRunner(vocab_size=50, num_blocks=2_000, block_size=BLOCK, max_model_len=1_000)
    runner = SimulatedRunner(SPEED, info=fake.info, inner=fake)
    core = EngineCore(
        runner=runner, controls=controls_of(config), cache=config.cache, clock=runner.clock.now, recorder=watch
    )
    counting = Counting(core.step_time)
    kept = {field.name: getattr(core.formation, field.name) for field in fields(Formation)}
    core.formation = formation(**(kept | {"step_time": counting}))
    source = random.Random(seed)
    requests = [
        Request(
            request_id=str(index),
            prompt_token_ids=tuple(source.choices(range(50), k=source.randrange(1, 200))),
            sampling=SamplingParams(temperature=0.0, max_tokens=source.randrange(1, 12), ignore_eos=True),
            arrival_time=source.uniform(0.0, 0.5),
        )
        for index in range(12)
    ]
    simulate(core, runner.clock, requests, lambda result: None)
    return watch.seen, counting.count


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1_000), target_ms=st.floats(5.0, 300.0), prompts=st.sampled_from([1, 3, 16]))
def test_the_chunks_are_those_of_trying_every_size(seed: int, target_ms: float, prompts: int) -> None:
    assert run(Formation, seed, target_ms, prompts)[0] == run(OneSizeAfterAnother, seed, target_ms, prompts)[0]


def test_an_overloaded_step_predicts_little() -> None:
    steps, count = run(Formation, 1, 40.0, 16)
    _, before = run(OneSizeAfterAnother, 1, 40.0, 16)
    assert count < before / 4
    # Two predictions and a bisection of at most 16 borders for the first prompts, one for each that finds no room.
    assert count < 20 * len(steps)
