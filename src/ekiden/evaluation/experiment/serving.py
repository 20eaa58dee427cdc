"""Serves the runs that are due, keeps each as soon as it has ended, and gives up where the plan says so.

An interrupted evaluation goes on where it stopped: what is kept is not measured again.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from ekiden.evaluation.experiment.order import DueRun
from ekiden.evaluation.load.subject import Subject
from ekiden.evaluation.plan.model import Plan
from ekiden.evaluation.plan.store import RunKey
from ekiden.evaluation.results import ArmRun
from ekiden.evaluation.workloads.offer import Workload


class Runs(Protocol):
    """Where the runs of one phase are kept."""

    def finished(self) -> Collection[RunKey]: ...

    def keep(self, run: ArmRun) -> None: ...

    def all_runs(self) -> list[ArmRun]: ...


class StoppedError(Exception):
    """The plan's ``[stop]`` was reached; the message says by what."""


def serve_all(
    plan: Plan,
    due: Sequence[DueRun],
    kept: Runs,
    *,
    workload_of: Callable[[DueRun], Workload],
    subject_of: Callable[[DueRun], Subject],
    complete: Callable[[ArmRun], None] = lambda run: None,
    after_run: Callable[[DueRun, Subject, ArmRun], None] = lambda due, subject, run: None,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Serve what is not yet kept; raises :class:`StoppedError`.

    ``complete`` may add to a run before it is kept; ``after_run`` is told of it then.
    """
    began, done = now(), kept.finished()
    void, errors = _bad(kept.all_runs())
    for each in due:
        if each.key in done:
            continue
        if (spent := now() - began) > plan.stop.seconds:
            raise StoppedError(f"{spent:.0f} s have passed and stop.seconds is {plan.stop.seconds:g}")
        workload, subject = workload_of(each), subject_of(each)
        run = subject.serve(workload)
        run.arm, run.workload, run.block, run.position = each.arm, each.workload.name, each.block, each.position
        complete(run)
        kept.keep(run)
        more_void, more_errors = _bad([run])
        void, errors = void + more_void, errors + more_errors
        after_run(each, subject, run)
        if void > plan.stop.void_runs:
            raise StoppedError(
                f"{void} runs are void and stop.void_runs is {plan.stop.void_runs}; the last: {run.void}"
            )
        if errors > plan.stop.errors:
            raise StoppedError(f"in {errors} runs an arm answered nothing and stop.errors is {plan.stop.errors}")


def _bad(runs: Iterable[ArmRun]) -> tuple[int, int]:
    """How many runs are void, and in how many others no request had a whole answer."""
    void = failed = 0
    for run in runs:
        if run.void is not None:
            void += 1
        elif run.results and all(result.record.failure is not None for result in run.results):
            failed += 1
    return void, failed
