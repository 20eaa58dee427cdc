"""A step that fails: run again once, then halved until the rows that cause it are alone."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from ekiden.stages.advance import Advance
from ekiden.state.invariants import Invariant, InvariantBreach
from ekiden.state.plan import BatchPlan, Row, RowResult, RowSampling, StepOutput, StepTiming
from ekiden.state.runner import ChunkRules, CopiesLost, RunnerBroken, RunnerError, RunnerInfo
from ekiden.state.sampling_params import SamplingParams

SAMPLING = RowSampling(SamplingParams(), 0, 1)


@dataclass
class Runner:
    """Answers each row with its slot; ``judge`` may raise for a plan."""

    judge: Callable[[list[int]], None]
    checked: Exception | None = None
    info: RunnerInfo = field(
        default_factory=lambda: RunnerInfo(
            backend="", vocab_size=9, max_model_len=9, block_size=1, num_blocks=9, num_swap_blocks=0,
            bytes_per_block=1, chunks=ChunkRules(border=1),
        )
    )  # fmt: skip
    plans: list[BatchPlan] = field(default_factory=list)
    checks: int = 0

    def execute(self, plan: BatchPlan) -> StepOutput:
        self.plans.append(plan)
        self.judge([row.slot for row in plan.rows])
        rows = [RowResult((row.slot,)) for row in plan.rows]
        return StepOutput(rows=rows, timing=StepTiming(model=0.5, sampling=0.25), padding_rows=1, passes=2, new_sizes=1)

    def check(self) -> None:
        self.checks += 1
        if self.checked is not None:
            raise self.checked

    def close(self) -> None:
        pass


def plan_of(count: int) -> BatchPlan:
    return BatchPlan([Row(slot, 1, (5,), (0,), SAMPLING) for slot in range(count)], [(1, 0)], [(0, 2)])


def run(runner: Runner, count: int) -> StepOutput:
    return Advance(runner=runner, clock=lambda: 0.0).run(plan_of(count))


def nothing(slots: list[int]) -> None:
    return None


def test_a_step_that_succeeds_is_run_once() -> None:
    runner = Runner(nothing)
    output = run(runner, 5)
    assert output.attempts == len(runner.plans) == 1
    assert runner.plans[0].swap_out == [(1, 0)]


def test_a_step_that_fails_once_is_run_again_without_its_copies() -> None:
    failures = [RunnerError("by chance")]

    def judge(slots: list[int]) -> None:
        if failures:
            raise failures.pop()

    runner = Runner(judge)
    output = run(runner, 5)
    assert [result.tokens for result in output.rows] == [(slot,) for slot in range(5)]
    assert output.attempts == 2
    assert [(len(plan.rows), plan.swap_out, plan.swap_in) for plan in runner.plans[1:]] == [(5, [], [])]
    assert (output.timing.model, output.passes, output.new_sizes) == (0.5, 2, 1)


@pytest.mark.parametrize("culprits", [{0}, {6}, {12}, {3, 4}, {0, 12}, {1, 5, 9}, set(range(12))], ids=str)
@pytest.mark.parametrize("error", [RunnerError, MemoryError, AssertionError, type("Panic", (BaseException,), {})])
def test_the_rows_that_fail_are_found_and_the_others_have_their_results(
    culprits: set[int], error: type[BaseException]
) -> None:
    def judge(slots: list[int]) -> None:
        if culprits.intersection(slots):
            raise error(f"planted in {slots}")

    runner = Runner(judge)
    output = run(runner, 13)
    for slot, result in enumerate(output.rows):
        if slot in culprits:
            assert result.tokens == ()
            assert f"{error.__name__}: planted in [{slot}]" in (result.error or "")
        else:
            assert result == RowResult((slot,))
    assert output.attempts == len(runner.plans) <= 2 + (2 * 4 + 1) * len(culprits)
    assert runner.checks == 0, "a row was computed, so the runner works"
    assert all(not plan.swap_out and not plan.swap_in for plan in runner.plans[1:])


def test_a_row_that_fails_by_chance_beside_one_that_always_does_is_not_blamed() -> None:
    chance = [RunnerError("by chance")]

    def judge(slots: list[int]) -> None:
        if 1 in slots:
            raise RunnerError("planted")
        if slots == [0] and chance:
            raise chance.pop()

    output = run(Runner(judge), 2)
    assert output.rows[0] == RowResult((0,))
    assert "planted" in (output.rows[1].error or "")


def test_rows_that_fail_only_together_all_go_on() -> None:
    def judge(slots: list[int]) -> None:
        if len(slots) > 3:
            raise MemoryError

    output = run(Runner(judge), 8)
    assert [result.tokens for result in output.rows] == [(slot,) for slot in range(8)]


def always(slots: list[int]) -> None:
    raise ZeroDivisionError("planted")


@pytest.mark.parametrize("count", [1, 2, 5])
def test_when_every_row_fails_the_runner_is_asked_whether_it_works(count: int) -> None:
    runner = Runner(always)
    output = run(runner, count)
    assert all("ZeroDivisionError: planted" in (result.error or "") for result in output.rows)
    assert runner.checks == 1
    broken = Runner(always, checked=RunnerError("no device"))
    with pytest.raises(RunnerBroken, match="nothing any more: RunnerError: no device"):
        run(broken, count)


@pytest.mark.parametrize(
    "error",
    [CopiesLost("x"), RunnerBroken("x"), InvariantBreach(Invariant.BLOCKS, "x"), KeyboardInterrupt(), SystemExit()],
    ids=repr,
)
def test_what_is_no_rows_fault_is_raised_at_once(error: BaseException) -> None:
    def judge(slots: list[int]) -> None:
        raise error

    runner = Runner(judge)
    with pytest.raises(type(error)):
        run(runner, 3)
    assert len(runner.plans) == 1


def test_a_plan_of_copies_alone_that_fails_otherwise_is_the_runners_fault() -> None:
    runner = Runner(always, checked=RunnerError("gone"))
    with pytest.raises(RunnerBroken):
        run(runner, 0)
    assert run(Runner(always), 0).rows == []
