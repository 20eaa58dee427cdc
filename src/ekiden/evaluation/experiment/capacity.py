"""Scales a plan to a machine: from each workload's ``load`` to a rate, by the speed that was measured there.

A rate that keeps one machine busy is idle on another and hopeless on a third, and both say nothing about scheduling.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from ekiden.engine.simulated import EngineSpeed
from ekiden.errors import UserError
from ekiden.evaluation.experiment.order import candidate_of
from ekiden.evaluation.experiment.subjects import Subjects
from ekiden.evaluation.plan.model import Plan
from ekiden.evaluation.workloads.offer import Workload
from ekiden.evaluation.workloads.sources import make
from ekiden.evaluation.workloads.spec import WorkloadSpec

REQUESTS: Final = 200
"""Served to find a capacity: enough that the last ones, which leave slots empty, weigh little."""


def fitted_rates(plan: Plan, subjects: Subjects) -> dict[str, float]:
    """The rate of each workload that has a ``load``, to two digits; by its name."""
    speeds: dict[bytes, EngineSpeed] = {}
    rates = {}
    for spec in plan.workloads:
        if spec.load is None:
            continue
        key = msgspec.json.encode(_of_compute(spec.engine), order="sorted")
        if key not in speeds:
            speeds[key] = subjects.speed(_of_compute(spec.engine))
        rates[spec.name] = float(f"{spec.load * capacity(plan, subjects, speeds[key], spec):.2g}")
    return rates


def capacity(plan: Plan, subjects: Subjects, speed: EngineSpeed, spec: WorkloadSpec) -> float:
    """Requests a second that the candidate answers where all of them wait from the start, in virtual time."""
    subject = subjects.simulated(plan.arms[candidate_of(plan)].settings, spec, speed)
    run = subject.serve(_all_at_once(spec))
    return len(run.results) / run.seconds


def _all_at_once(spec: WorkloadSpec) -> Workload:
    """Requests of dev, more than one block of them where the source has so many."""
    longer = msgspec.structs.replace(spec, seconds=max(spec.seconds, REQUESTS / spec.rate))
    try:
        workload = make(longer, split="dev", block=0, seed=0)
    except UserError:
        workload = make(spec, split="dev", block=0, seed=0)
    offers = tuple(msgspec.structs.replace(offer, at=0.0, deadline=None) for offer in workload.offers)
    return msgspec.structs.replace(workload, offers=offers)


def _of_compute(engine: Mapping[str, object]) -> dict[str, object]:
    """The settings that change how fast a step is; the size of the pool does not."""
    return {name: value for name, value in engine.items() if name not in ("kv_cache_size", "swap_size")}
