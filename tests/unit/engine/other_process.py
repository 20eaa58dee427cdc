"""Executes plans in a process that shares nothing with the engine that made them."""

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ekiden.state.plan import BatchPlan, StepOutput, StepTiming
from ekiden.state.runner import ModelRunner, RunnerInfo

Bytes = list[bytes]


@dataclass
class Recorded:
    """A runner that keeps what it is given and what it gives, as msgpack."""

    runner: ModelRunner
    plans: Bytes = field(default_factory=list)
    outputs: Bytes = field(default_factory=list)

    @property
    def info(self) -> RunnerInfo:
        return self.runner.info

    def execute(self, plan: BatchPlan) -> StepOutput:
        self.plans.append(msgspec.msgpack.encode(plan))
        output = self.runner.execute(plan)
        self.outputs.append(encoded(output))
        return output

    def check(self) -> None:
        self.runner.check()

    def close(self) -> None:
        self.runner.close()


def encoded(output: StepOutput) -> bytes:
    """The output but for how long it took."""
    return msgspec.msgpack.encode(msgspec.structs.replace(output, timing=StepTiming()))


def execute_all(make_runner: Callable[[], ModelRunner], plans: Bytes) -> Bytes:
    runner = make_runner()
    try:
        return [encoded(runner.execute(msgspec.msgpack.decode(plan, type=BatchPlan))) for plan in plans]
    finally:
        runner.close()


def execute_elsewhere(make_runner: Callable[[], ModelRunner], plans: Bytes) -> Bytes:
    """The outputs of plans from another process; ``make_runner`` is importable there."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(execute_all, (make_runner, plans))
