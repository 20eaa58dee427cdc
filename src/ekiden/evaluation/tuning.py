"""Finds good settings for an arm on dev, because a comparison with an untuned baseline is dishonest.

``Arm.tune`` names for some settings the values that may be tried; every combination is a trial, or a seeded sample
where there are too many. All trials run in simulated time; the best few then run on the real subject, which alone
decides where there is one. A trial's score is its goodput over all given workloads; of equal ones the lower p99 of TTFT
wins, then the one that comes first in the order in which the plan writes the values.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from ekiden.errors import UserError
from ekiden.evaluation.load.subject import Subject
from ekiden.evaluation.outcome import Tuning
from ekiden.evaluation.plan.model import Arm, Objectives
from ekiden.evaluation.results import ArmRun
from ekiden.evaluation.workloads.offer import Workload
from ekiden.measure.percentiles import percentiles

Settings = dict[str, Any]
MakeSubject = Callable[[Settings], Subject]
"""From an arm's settings (its own, and those tried) to a subject that is closed after its trial. A
:class:`~ekiden.errors.UserError`, as for settings that cannot work together, makes the trial impossible."""

MOST_TRIALS = 64
BEST = 3
SIMULATED, REAL = "simulated", "real"


class Trial(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One combination of values, tried once."""

    settings: Settings
    """Those of ``Arm.tune`` only."""
    where: str
    """``simulated`` or ``real``."""
    goodput: float | None = None
    """Good results a second of arrivals; None if it could not be had."""
    attainment: float | None = None
    ttft_p99: float | None = None
    """Of the sample, whatever its size: it only breaks ties here."""
    why_not: str = ""

    @property
    def rank(self) -> tuple[float, float]:
        """Lower is better."""
        goodput = -math.inf if self.goodput is None else self.goodput
        return -goodput, math.inf if self.ttft_p99 is None else self.ttft_p99


def tune(
    arm: Arm,
    workloads: Sequence[Workload],
    make_subject: MakeSubject | None,
    objectives: Objectives,
    *,
    name: str = "",
    simulated: MakeSubject | None = None,
    seed: int = 0,
    most_trials: int = MOST_TRIALS,
    best: int = BEST,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> Tuning:
    """Try the arm's grid on ``workloads`` (of dev), and choose.

    With ``simulated`` the grid runs there, and the ``best`` trials again on ``make_subject``; without it the whole grid
    runs on ``make_subject``. One of the two may be None. Raises :class:`UserError` when no combination can be served.
    """
    grid, combinations = trials_of(arm, seed=seed, most=most_trials)
    screen, decide = (simulated, make_subject) if simulated is not None else (make_subject, None)
    if screen is None:
        raise ValueError("tuning needs a subject")
    where = SIMULATED if simulated is not None else REAL
    trials = [_try(arm, settings, workloads, screen, objectives, where, on_trial) for settings in grid]
    finalists = [trial for trial in sorted(trials, key=lambda trial: trial.rank) if trial.goodput is not None]
    how = _how(len(grid), combinations, where, seed)
    if decide is not None and len(finalists) > 1:
        again = finalists[:best]
        finals = [_try(arm, each.settings, workloads, decide, objectives, REAL, on_trial) for each in again]
        trials += finals
        finalists = [trial for trial in sorted(finals, key=lambda trial: trial.rank) if trial.goodput is not None]
        how += f", and the best {len(again)} again on the engine itself, which decided"
    if not finalists:
        raise UserError(
            f"arm {name!r}: none of the {len(grid)} combinations in tune can be served: {trials[-1].why_not}"
        )
    told = [msgspec.to_builtins(trial) for trial in trials]
    return Tuning(arm=name, chosen={**arm.settings, **finalists[0].settings}, trials=told, how=how)


def trials_of(arm: Arm, *, seed: int = 0, most: int = MOST_TRIALS) -> tuple[list[Settings], int]:
    """The combinations that are tried, in the order of the grid, and how many there are in all.

    Raises :class:`UserError` for a setting without values.
    """
    for name, values in arm.tune.items():
        if not values:
            raise UserError(f"tune.{name} has no values; name at least one, or leave it out")
    combinations = math.prod(len(values) for values in arm.tune.values())
    if combinations <= most:
        chosen: Iterable[int] = range(combinations)
    else:
        chosen = sorted(random.Random(seed).sample(range(combinations), most))
    wanted = set(chosen)
    every = itertools.product(*arm.tune.values())
    return [dict(zip(arm.tune, values, strict=True)) for at, values in enumerate(every) if at in wanted], combinations


def _try(
    arm: Arm,
    settings: Settings,
    workloads: Sequence[Workload],
    make_subject: MakeSubject,
    objectives: Objectives,
    where: str,
    on_trial: Callable[[Trial], None],
) -> Trial:
    """One trial. A void run is repeated once; void again, the trial has no score."""
    trial = Trial(settings=settings, where=where)
    try:
        subject = make_subject({**arm.settings, **settings})
    except UserError as error:
        trial.why_not = str(error)
    else:
        try:
            runs = []
            for workload in workloads:
                run = subject.serve(workload)
                runs.append(subject.serve(workload) if run.void else run)
        finally:
            subject.close()
        _score(trial, runs, objectives)
    on_trial(trial)
    return trial


def _score(trial: Trial, runs: Sequence[ArmRun], objectives: Objectives) -> None:
    if void := next((run.void for run in runs if run.void), None):
        trial.why_not = f"void: {void}"
        return
    records = [result.record for run in runs for result in run.results]
    good = sum(record.meets(objectives.ttft, objectives.tpot) for record in records)
    seconds = sum(run.arrival_seconds for run in runs)
    firsts = [first for record in records if record.failure is None and (first := record.ttft) is not None]
    trial.goodput = good / seconds if seconds else 0.0
    trial.attainment = good / len(records) if records else 0.0
    trial.ttft_p99 = percentiles(firsts, [99.0])[0] if firsts else None


def _how(tried: int, combinations: int, where: str, seed: int) -> str:
    number = f"all {tried}" if tried == combinations else f"{tried} of {combinations} (drawn with seed {seed})"
    place = "in simulated time" if where == SIMULATED else "on the engine itself"
    return f"tried {number} combinations on dev {place}; the highest goodput, then the lower p99 of TTFT"
