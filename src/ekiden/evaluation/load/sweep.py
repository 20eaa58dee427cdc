"""The highest rate of arrivals at which the SLO attainment holds: doubling, then bisection.

A *point* is a rate with the runs that were made at it, each with a workload of its own (the first with index 0, and so
on, at every rate). Attainment is good / all offered requests, pooled over the runs. A point *holds* when the whole
Wilson interval of its attainment is at or above the target, and fails when all of it is below; until one of both is so
it is run again, at most ``runs`` times. Then its attainment alone decides, and the point is marked as not decided.

Requests of one run wait for each other, so they say less than as many independent ones would, and the interval is
narrower than the truth: it decides when to stop measuring, and is no confidence in the result.

The search doubles the rate until a point fails (or halves it until one holds), and then tries the geometric middle
of the highest rate that holds and the lowest that fails, until they are no further apart than ``precision``. It takes
attainment to fall with the rate: should a higher rate hold by luck after a lower one failed, the lower one counts.

Every run is written to a state file as it ends, so a sweep that was stopped goes on where it was.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import sqrt
from pathlib import Path

import msgspec

from ekiden.errors import UserError
from ekiden.evaluation.load.subject import Subject
from ekiden.evaluation.outcome import Chart, Curve
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.results import ArmRun
from ekiden.evaluation.workloads.offer import Workload
from ekiden.evidence.extras import needed
from ekiden.measure.percentiles import MIN_VALUES_FOR_P99, percentiles

MOST_VOID = 3
"""Void runs at one rate, after which the sweep gives up: this machine cannot offer that load."""
Watch = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
_MOST_STEPS = 24
"""Doublings, or halvings: a range of 16 million."""


class SweepError(UserError, RuntimeError):
    """A sweep that cannot go on; the message says what to change."""


class SweepRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one run gave, as a line of the state file."""

    rate: float
    index: int
    """Of the run at its rate, from 0."""
    offered: int
    good: int
    seconds: float
    """Of the arrivals."""
    ttft: list[float]
    """Of the answers that had a first token."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A rate and what was measured at it. ``low`` and ``high``: the ends of the Wilson interval of ``attainment``."""

    rate: float
    runs: int
    offered: int
    good: int
    attainment: float
    low: float
    high: float
    goodput: float
    """Good answers a second of the arrivals' duration."""
    p99_ttft: float | None
    """Seconds; None below 299 first tokens."""
    holds: bool
    decided: bool
    """Whether the interval decided ``holds``."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """``highest`` is the highest rate that holds, in requests a second; None if none was found. ``points`` ascend."""

    target: float
    highest: float | None
    points: list[Point]

    def chart(self, arm: str) -> Chart:
        """Goodput and attainment against the rate, as the report draws them."""
        rates = [point.rate for point in self.points]
        lows, highs = [point.low for point in self.points], [point.high for point in self.points]
        return Chart(
            kind="goodput_rate",
            title="Goodput and SLO attainment against the rate of arrivals",
            x_label="requests/s offered",
            y_label="good answers/s, or share of requests",
            curves=[
                Curve(name=arm, x=rates, y=[point.goodput for point in self.points]),
                Curve(name=f"{arm}: attainment", x=rates, y=[p.attainment for p in self.points], low=lows, high=highs),
            ],
        )


def wilson(good: int, offered: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """The two-sided score interval of a share (Wilson, 1927); from 0 to 1 where nothing was offered."""
    if offered == 0:
        return 0.0, 1.0
    test = needed("scipy.stats", "evaluate").binomtest(good, offered)
    interval = test.proportion_ci(confidence_level=confidence, method="wilson")
    return float(interval.low), float(interval.high)


def point_of(runs: Sequence[SweepRun], *, target: float) -> Point:
    """The point that one run or more at the same rate make."""
    offered, good = sum(run.offered for run in runs), sum(run.good for run in runs)
    ttft = [value for run in runs for value in run.ttft]
    low, high = wilson(good, offered)
    attainment = good / offered if offered else 0.0
    return Point(
        rate=runs[0].rate,
        runs=len(runs),
        offered=offered,
        good=good,
        attainment=attainment,
        low=low,
        high=high,
        goodput=good / sum(run.seconds for run in runs),
        p99_ttft=percentiles(ttft, (99,))[0] if len(ttft) >= MIN_VALUES_FOR_P99 else None,
        holds=attainment >= target,
        decided=low >= target or high < target,
    )


def next_rate(holds: Mapping[float, bool], *, first: float, precision: float, least: float = 0.0) -> float | None:
    """The rate to try next, from what is known of others; None when the search has ended. None is below ``least``."""
    if not holds:
        return first
    failing = min((rate for rate, held in holds.items() if not held), default=None)
    held = max((rate for rate, good in holds.items() if good and (failing is None or rate < failing)), default=None)
    if failing is None:
        return 2 * max(holds) if len(holds) <= _MOST_STEPS else None
    if held is None:
        return failing / 2 if len(holds) <= _MOST_STEPS and failing / 2 >= least else None
    return sqrt(held * failing) if failing / held > 1 + precision else None


def sweep(
    subject: Subject,
    make: Callable[[float, int], Workload],
    objectives: Objectives,
    *,
    first: float,
    precision: float = 0.1,
    least: float = 0.0,
    runs: int = 3,
    state: Path | None = None,
    made_with: Mapping[str, object] | None = None,
    watch: Watch = lambda label, total: nullcontext(lambda: None),
    on_run: Callable[[SweepRun], None] = lambda run: None,
) -> Sweep:
    """Find the highest rate at which ``objectives.attainment`` holds.

    ``make(rate, index)`` makes the workload of a run; below the rate ``least`` there is none. ``state`` is the file
    that remembers runs, and ``made_with`` says what they were made with: a file of another sweep is refused.
    ``watch(label, total)`` is entered around each run, and what it gives is called with each answer, as
    :func:`ekiden.build.progress.progress` is.

    Raises:
        SweepError: void runs again and again, or a state file of another sweep.
        KeyboardInterrupt: as it comes; what has ended is in the state file.
    """
    memory = SweepState(state, {"objectives": msgspec.to_builtins(objectives), "with": made_with or {}})
    holds: dict[float, bool] = {}
    points: list[Point] = []
    while (rate := next_rate(holds, first=first, precision=precision, least=least)) is not None:
        done = memory.runs_at(rate)
        while len(done) < runs and not (done and point_of(done, target=objectives.attainment).decided):
            index = len(done)
            run = _run(subject, make(rate, index), watch, f"{rate:.3g} requests/s")
            done.append(summary_of(run, objectives, rate=rate, index=index))
            memory.add(done[-1])
            on_run(done[-1])
        points.append(point_of(done, target=objectives.attainment))
        holds[rate] = points[-1].holds
    failing = min((rate for rate, held in holds.items() if not held), default=None)
    highest = max((rate for rate, held in holds.items() if held and (failing is None or rate < failing)), default=None)
    return Sweep(target=objectives.attainment, highest=highest, points=sorted(points, key=lambda point: point.rate))


def _run(subject: Subject, workload: Workload, watch: Watch, label: str) -> ArmRun:
    """One run that is not void."""
    for _ in range(MOST_VOID):
        with watch(label, len(workload.offers)) as advance:
            run = subject.serve(workload, on_answer=advance)
        if run.void is None:
            return run
    raise SweepError(
        f"{MOST_VOID} runs at {label} were void, the last one because {run.void}; "
        "quieten the machine, or sweep a slower load (longer answers, a larger model)"
    )


def summary_of(run: ArmRun, objectives: Objectives, *, rate: float, index: int) -> SweepRun:
    """What a sweep keeps of a run."""
    records = [result.record for result in run.results]
    return SweepRun(
        rate=rate,
        index=index,
        offered=len(records),
        good=sum(record.meets(objectives.ttft, objectives.tpot) for record in records),
        seconds=run.arrival_seconds,
        ttft=[ttft for record in records if (ttft := record.ttft) is not None],
    )


class SweepState:
    """The runs of a sweep, in a file of JSON lines: what the sweep was made with, then one line for each run."""

    def __init__(self, path: Path | None, made_with: Mapping[str, object]) -> None:
        self._path = path
        self._runs: list[SweepRun] = []
        head = msgspec.json.encode(made_with, order="deterministic")
        if path is None:
            return
        try:
            text = path.read_bytes() if path.exists() else b""
            lines = text.split(b"\n")[:-1]  # a line that was cut short when its writer was killed does not count
            if lines and lines[0] != head:
                raise SweepError(
                    f"{path} is of another sweep ({lines[0].decode(errors='replace')[:200]}); "
                    "name another file, or delete this one"
                )
            self._runs = [msgspec.json.decode(line, type=SweepRun) for line in lines[1:]]
            whole = sum(len(line) + 1 for line in lines)
            if not lines:
                path.write_bytes(head + b"\n")
            elif whole < len(text):
                os.truncate(path, whole)
        except msgspec.DecodeError as error:
            raise SweepError(f"{path} holds a line that is no run ({error}); delete it to begin anew") from error
        except OSError as error:
            raise SweepError(f"the sweep's state cannot be kept in {path}: {error.strerror or error}") from error

    def runs_at(self, rate: float) -> list[SweepRun]:
        """The runs that were made at a rate, in their order."""
        return sorted((run for run in self._runs if run.rate == rate), key=lambda run: run.index)

    def add(self, run: SweepRun) -> None:
        self._runs.append(run)
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(run) + b"\n")
