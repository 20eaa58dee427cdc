"""What a good answer costs: the machine's time at the stated price, processor time, and energy where a counter has it.

Nothing is estimated: without a price or a counter a figure is None, which the report prints as "not measured".
"""

from collections.abc import Sequence
from typing import Final

from ekiden.evaluation.analysis.metric import MetricDef, Sums
from ekiden.evaluation.analysis.requests import num_good
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.results import ArmRun
from ekiden.measure.figures import FORMULAS as MEASURED

SECONDS_PER_HOUR: Final = 3600.0

TOTALS: Final = {
    "machine_seconds": "start of the arrivals to the end of the last answer, sum over the runs",
    "cost": "machine_seconds / 3600 x the stated price of a machine-hour",
    "cpu_seconds": MEASURED["cpu_seconds"] + ", sum over the runs",
    "joules": MEASURED["joules"] + ", sum over the runs; not measured without counters",
}
"""The formulas of :func:`totals`."""


def totals(runs: Sequence[ArmRun], objectives: Objectives) -> dict[str, float | None]:
    """What the runs took together, by the names of :data:`TOTALS`; None where a run lacks its part."""
    return {
        "machine_seconds": _sum([run.seconds for run in runs]),
        "cost": _sum([_price(run, objectives) for run in runs]),
        "cpu_seconds": _sum([run.cpu_seconds for run in runs]),
        "joules": _sum([run.joules for run in runs]),
    }


def _sum(amounts: Sequence[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known and len(known) == len(amounts) else None


def _price(run: ArmRun, objectives: Objectives) -> float | None:
    price = objectives.price_per_machine_hour
    return None if price is None else run.seconds / SECONDS_PER_HOUR * price


def _per_good(amount: float | None, run: ArmRun, objectives: Objectives) -> Sums | None:
    return None if amount is None else Sums(amount, num_good(run, objectives))


def _machine_seconds(run: ArmRun, objectives: Objectives) -> Sums | None:
    return _per_good(run.seconds, run, objectives)


def _cpu_seconds(run: ArmRun, objectives: Objectives) -> Sums | None:
    return _per_good(run.cpu_seconds, run, objectives)


def _cost(run: ArmRun, objectives: Objectives) -> Sums | None:
    return _per_good(_price(run, objectives), run, objectives)


def _joules(run: ArmRun, objectives: Objectives) -> Sums | None:
    return _per_good(run.joules, run, objectives)


COSTS: Final = (
    MetricDef(
        name="machine_seconds_per_good",
        formula="seconds of the machine, from the start of the arrivals to the end of the last answer / good",
        unit="s",
        direction="down",
        of_run=_machine_seconds,
    ),
    MetricDef(
        name="cost_per_good",
        formula="machine-seconds / 3600 x the stated price of a machine-hour / good",
        unit="",
        direction="down",
        of_run=_cost,
    ),
    MetricDef(
        name="cpu_seconds_per_good",
        formula=f"({MEASURED['cpu_seconds']}) / good",
        unit="s",
        direction="down",
        of_run=_cpu_seconds,
    ),
    MetricDef(
        name="joules_per_good",
        formula=f"({MEASURED['joules']}) / good; not measured without counters",
        unit="J",
        direction="down",
        of_run=_joules,
    ),
)
"""What a good answer costs. There is no value where no answer was good."""
