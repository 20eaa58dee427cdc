"""What a change of the controls does to running, preempted and padding rows in the engine core."""

from dataclasses import replace

from ekiden.backends.fake import FakeRunner
from ekiden.config import CacheConfig, Config, SchedulerConfig, controls_of
from ekiden.engine.engine_core import EngineCore
from ekiden.state.controls import ControlChange, ControlState, ControlValue, SetBy
from ekiden.state.turn import LeftOutReason
from tests.steps import StepView, StepWatcher
from tests.unit.engine.fake_parts import make_request

BLOCK = 4


class Watched(StepWatcher):
    """A core over the fake model, its last step and the answers to changes."""

    def __init__(self, most_tokens: int | None = None, **scheduler: object) -> None:
        runner = FakeRunner(vocab_size=1000, num_blocks=200, block_size=BLOCK)
        runner.info = replace(runner.info, most_tokens=most_tokens)  # as if loaded for steps of that size
        cache = CacheConfig(block_size=BLOCK)
        config = Config(scheduler=SchedulerConfig(**scheduler), cache=cache)  # type: ignore[arg-type]
        self.core = EngineCore(
            runner=runner, controls=controls_of(config), cache=cache, clock=lambda: 0.0, recorder=self
        )  # fmt: skip
        self.answers: list[ControlState | str] = []
        self.view: StepView | None = None

    def on_step(self, view: StepView) -> None:
        self.view = view

    def submit(self, *lengths: int) -> None:
        for index, length in enumerate(lengths):
            self.core.add_request(make_request(f"r{index}", max_tokens=length))

    def set(self, **values: ControlValue) -> None:
        self.core.set_controls(ControlChange(values=values, set_by=SetBy.PERSON, who="anna"), self.answers.append)

    def rows(self) -> list[str]:
        """Who is computed in the next step."""
        self.core.step()
        self.core.check_integrity()
        assert self.view is not None
        return [sequence.request_id for sequence in self.view.formed.sequences]

    def run(self) -> None:
        while self.core.has_work:
            self.rows()


def test_a_model_is_not_asked_for_more_than_it_was_prepared_for() -> None:
    watched = Watched(most_tokens=64, max_num_seqs=4, max_num_batched_tokens=64)
    watched.set(max_num_batched_tokens=65)
    watched.core.step()
    told = "max_num_batched_tokens is 65; the model was loaded for at most 64: restart for more"
    assert watched.answers == [told]
    assert watched.core.controls.now.epoch == 0


def test_with_a_smaller_budget_the_newest_rows_sit_out_and_nobody_is_lost() -> None:
    watched = Watched(max_num_seqs=16, max_num_batched_tokens=64)
    watched.submit(*[20] * 16)
    while len(watched.rows()) < 16:
        pass  # prompts are computed
    watched.set(max_num_seqs=1, max_num_batched_tokens=9)
    assert watched.rows() == [f"r{index}" for index in range(9)]
    assert watched.view is not None
    assert {reason for _, reason in watched.view.formed.left_out} == {LeftOutReason.TOKEN_BUDGET}
    assert watched.core.population.num_in_batch == 16
    watched.run()
    assert watched.core.stats().finished_total == {"length": 16}


def test_padding_rows_end_when_another_policy_comes_into_force() -> None:
    watched = Watched(max_num_seqs=2, max_num_batched_tokens=64, batching="static-padded")
    watched.submit(2, 30, 5)
    for _ in range(4):
        watched.rows()
    assert [s.request_id for s in watched.core.population.padding] == ["r0"]
    watched.set(batching="continuous")
    watched.rows()
    assert watched.core.population.padding == []
    assert watched.rows() == ["r1", "r2"], "the slot goes to the next in line at once"
    watched.set(batching="static-padded")
    watched.run()
    assert watched.core.stats().finished_total == {"length": 3}
    assert watched.core.population.padding == []


def test_requests_around_a_drain_in_one_boundary_are_taken_by_their_order() -> None:
    watched = Watched(max_num_seqs=2, max_num_batched_tokens=64)
    for index, draining in enumerate((True, False)):
        watched.core.add_request(make_request(f"before {index}", max_tokens=2))
        watched.set(draining=draining)
    watched.core.add_request(make_request("after", max_tokens=2))
    updates = watched.core.step().updates
    assert [update.request_id for update in updates if update.refusal is not None] == ["before 1"]
    assert set(watched.core.population.by_id) == {"before 0", "after"}
