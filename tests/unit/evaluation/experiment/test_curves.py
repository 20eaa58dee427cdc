"""Goodput against rate, in virtual time."""

from ekiden.evaluation.experiment.conduct import Conductor
from ekiden.evaluation.experiment.curves import rate_chart
from tests.unit.evaluation.experiment.virtual import SHORT, VirtualSubjects, plan_document
from tests.unit.evaluation.plan.plans import parsed
from tests.unit.evaluation.simulated_arms import SPEED


def test_each_compared_arm_has_a_curve_and_holds_what_it_can():
    arms = {
        "continuous": {"role": "candidate", "settings": {"batching": "continuous"}},
        "static": {"role": "baseline", "settings": {"batching": "static"}},
        "window": {"role": "other", "settings": {"batching": "window"}},
    }
    plan = parsed(plan_document(arms, workload=SHORT))
    chart = rate_chart(Conductor(plan=plan, subjects=VirtualSubjects(plan), speed=SPEED))
    assert [curve.name for curve in chart.curves] == ["continuous", "static"]
    continuous, static = (curve.y for curve in chart.curves)
    assert chart.curves[0].x == chart.curves[1].x == [3.0, 12.0]
    assert continuous[0] > 2.5, "half the rate is held"
    assert continuous[1] > static[1]
