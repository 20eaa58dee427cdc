"""Goodput against rate, in virtual time: what each arm would make of more and of less than the plan offers."""

from typing import Final

import msgspec

from ekiden.evaluation.experiment.conduct import Conductor
from ekiden.evaluation.experiment.order import first_workload
from ekiden.evaluation.outcome import Chart, Curve
from ekiden.evaluation.workloads.sources import make

FACTORS: Final = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
"""Of the plan's rate."""


def rate_chart(conductor: Conductor) -> Chart:
    """The candidate and its baselines on the first normal workload of dev, by the fitted step-time model."""
    plan, spec, speed = conductor.plan, first_workload(conductor.plan), conductor.speed
    assert speed is not None, "the speed is measured before anything is simulated"
    rates = [spec.rate * factor for factor in FACTORS]
    curves = []
    for name, arm in plan.arms.items():
        if arm.url is not None or arm.role == "other":
            continue
        subject = conductor.subjects.simulated(conductor.settings_of(name), spec, speed)
        goodput = []
        for rate in rates:
            workload = make(msgspec.structs.replace(spec, rate=rate), split="dev", block=0, seed=plan.confirm.seed)
            run = subject.serve(workload)
            good = sum(each.record.meets(plan.objectives.ttft, plan.objectives.tpot) for each in run.results)
            goodput.append(good / run.arrival_seconds)
        curves.append(Curve(name=name, x=rates, y=goodput))
    return Chart(
        kind="goodput_rate",
        title=f"Goodput against rate, {spec.name}, simulated with step times fitted here",
        x_label="requests offered, 1/s",
        y_label="good answers, 1/s",
        curves=curves,
    )
