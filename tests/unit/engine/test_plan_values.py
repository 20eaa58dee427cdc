"""Plans and results are values: they survive msgpack, and another process computes the same from them."""

import msgspec

from ekiden.backends.fake import FakeRunner
from ekiden.sampling.sampler import Sampler
from ekiden.state.plan import BatchPlan, StepOutput
from tests.api.scripted import VOCAB_SIZE
from tests.unit.engine.other_process import Recorded, execute_elsewhere
from tests.unit.engine.test_drafts import Recital, Run, drive, greedy, make_core, request


def make_runner() -> FakeRunner:
    return FakeRunner(
        vocab_size=VOCAB_SIZE, num_blocks=12, block_size=4, num_swap_blocks=64, max_drafts=4, sampler=Sampler()
    )


def test_another_process_gives_the_same_from_the_plans_alone() -> None:
    run = Run()
    known = greedy(20)
    runner = Recorded(make_runner())
    core = make_core(run, Recital({"a": known}, wrong=frozenset({4})), num_blocks=12, sampler=Sampler())
    core.advance.runner = runner
    requests = [
        request("a"),
        request("b", (3, 4, 5, 6, 7), temperature=1.0, frequency_penalty=0.4, logprobs=3),
        request("c", (9, 9, 9, 9, 1, 2), temperature=0.7, min_tokens=9, stop_token_ids=(4, 5), prompt_logprobs=2),
        request("d", tuple(range(100, 120)), max_tokens=3),
    ]
    drive(core, run, requests)
    assert any(view.formed.plan.swap_out for view in run.views)
    assert any(row.num_drafts for view in run.views for row in view.formed.plan.rows)
    assert execute_elsewhere(make_runner, runner.plans) == runner.outputs
    for view, plan, output in zip(run.views, runner.plans, runner.outputs, strict=False):
        assert msgspec.msgpack.decode(plan, type=BatchPlan) == view.formed.plan
        assert msgspec.msgpack.decode(output, type=StepOutput).rows == view.output.rows
