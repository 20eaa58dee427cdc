"""The production core in virtual time: exact, repeatable, and faithful to faults that are planted."""

import pytest

from ekiden.engine.simulated import Noise
from ekiden.evaluation.load.simulated_subject import pool_for, simulated_prompts
from ekiden.evaluation.results import ArmRun
from ekiden.evaluation.workloads.offer import Kind, Offer, Workload
from ekiden.state.plan import BatchPlan, RowResult, StepOutput
from ekiden.state.runner import ModelRunner, RunnerInfo
from tests.unit.evaluation.simulated_arms import INFO, OBJECTIVES, SPEED, config, subject, workload

NOISE = Noise(step=0.1, drift=0.05)


def good(run: ArmRun) -> int:
    return sum(result.record.meets(OBJECTIVES.ttft, OBJECTIVES.tpot) for result in run.results)


def mean_e2e(run: ArmRun) -> float:
    return sum(result.record.e2e or 0.0 for result in run.results) / len(run.results)


def test_the_same_subject_gives_the_same_run_and_its_runs_differ_by_their_noise() -> None:
    offered = workload()
    first, again = subject(noise=NOISE, seed=3), subject(noise=NOISE, seed=3)
    runs = [first.serve(offered), first.serve(offered)]
    assert runs == [again.serve(offered), again.serve(offered)]
    assert runs[0] != runs[1]
    assert runs[0].workload_digest == offered.digest


@pytest.mark.parametrize("stated", [-1, None, 200])
@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_answers_have_their_lengths_whatever_limit_is_stated(stated: int | None, batching: str) -> None:
    offered = workload(stated=stated)
    run = subject({"batching": batching}).serve(offered)
    assert [len(result.token_ids or ()) for result in run.results] == [offer.output_tokens for offer in offered.offers]
    assert all(result.record.failure is None for result in run.results)
    assert run.steps is not None
    assert run.steps.computed_tokens <= run.steps.budget_tokens


def test_arms_give_equal_tokens_and_continuous_batching_is_faster() -> None:
    offered = workload(rate=20.0)
    continuous, static = (subject({"batching": name}).serve(offered) for name in ("continuous", "static"))
    assert [each.token_ids for each in continuous.results] == [each.token_ids for each in static.results]
    assert len({each.token_ids for each in continuous.results}) == len(offered.offers)
    assert mean_e2e(continuous) < mean_e2e(static)


def test_no_answer_is_faster_than_alone() -> None:
    run = subject().serve(workload())
    for result in run.results:
        assert result.record.e2e is not None
        assert result.slowest_alone is not None
        assert result.record.e2e >= result.slowest_alone - SPEED.gap - 1e-9
    (lone,) = subject().serve(workload(1)).results
    assert lone.record.e2e == pytest.approx((lone.slowest_alone or 0.0) - SPEED.gap)


def test_an_arm_against_itself_differs_by_noise_only() -> None:
    offered = workload(40, rate=8.0)
    ratios = [
        mean_e2e(subject(noise=NOISE, seed=2 * pair).serve(offered))
        / mean_e2e(subject(noise=NOISE, seed=2 * pair + 1).serve(offered))
        for pair in range(5)
    ]
    assert sum(ratios) / len(ratios) == pytest.approx(1.0, abs=0.1)
    assert len(set(ratios)) == 5


def test_a_planted_slow_step_shows() -> None:
    offered = workload(rate=4.0)
    slow, plain = subject(slowdown=1.2).serve(offered), subject().serve(offered)
    assert mean_e2e(slow) > 1.15 * mean_e2e(plain)
    assert good(slow) <= good(plain)


class WrongFrom:
    """A runner whose tokens are wrong from its n-th step on."""

    def __init__(self, runner: ModelRunner, step: int) -> None:
        self._runner, self._left = runner, step

    @property
    def info(self) -> RunnerInfo:
        return self._runner.info

    def execute(self, plan: BatchPlan) -> StepOutput:
        output = self._runner.execute(plan)
        self._left -= 1
        if self._left >= 0:
            return output
        wrong = [RowResult(tuple((token + 1) % 500 for token in row.tokens)) for row in output.rows]
        return StepOutput(rows=wrong, timing=output.timing)

    def check(self) -> None: ...

    def close(self) -> None: ...


def test_planted_wrong_tokens_show_from_their_step_on() -> None:
    offered = workload()
    plain, wrong = subject().serve(offered), subject(wrap=lambda runner: WrongFrom(runner, 100)).serve(offered)
    equal = [one.token_ids == other.token_ids for one, other in zip(plain.results, wrong.results, strict=True)]
    assert equal[0]
    assert not equal[-1]
    assert [one.record for one in plain.results] == [other.record for other in wrong.results]


def test_a_smaller_pool_is_made_from_the_setting() -> None:
    assert config().cache.kv_cache_size == "512MiB"
    sized = pool_for(INFO, config())
    assert (sized.num_blocks, sized.block_size) == (512 * 1024, INFO.block_size)


def test_prompts_share_what_their_group_shares() -> None:
    offers = tuple(
        Offer(id=str(at), at=at, output_tokens=1, prompt_tokens=40 + at, prefix_group=group, prefix_tokens=32)
        for at, group in enumerate(["x", "x", "y", ""])
    )
    offers += (Offer(id="text", at=9.0, output_tokens=1, text="word " * 40, language="en"),)
    made = Workload(name="w", kind=Kind.NORMAL, seconds=9.0, offers=offers, made={}, sources={})
    first, second, other, alone, text = simulated_prompts(made, vocab_size=1000)
    assert first[:32] == second[:32]
    assert first[32:40] != second[32:40]
    assert len({first[:32], other[:32], alone[:32]}) == 3
    assert [len(first), len(second), len(alone), len(text)] == [40, 41, 43, 50]
