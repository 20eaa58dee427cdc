"""How fast the machine of a recorded run was: the step-time model of its steps, and the time between them."""

from dataclasses import fields
from itertools import pairwise

from ekiden.engine.simulated import EngineSpeed, fitted_speed
from ekiden.engine.step_time import usual
from ekiden.ledger.records import TurnRow
from ekiden.state.policy import StepLoad

_LOAD = [field.name for field in fields(StepLoad)]


def recorded_speed(rows: list[TurnRow]) -> EngineSpeed:
    """From the turns of a run, in order; those that computed nothing say nothing."""
    steps = [row for row in rows if row.p50 > 0 and row.took > 0]
    loads = [StepLoad(**{name: getattr(row, name) for name in _LOAD}) for row in steps]
    kept = usual(loads, [row.new_sizes > 0 for row in steps])
    busy = ((before, after) for before, after in pairwise(rows) if before.running and after.p50 > 0)
    gaps = [(after.start - before.end) / 1e6 for before, after in busy]
    return fitted_speed([loads[i] for i in kept], [steps[i].took / 1e6 for i in kept], gaps)
