"""Stage 3, advance: hand the plan to the runner and measure how long it takes.

The runner computes the rows and chooses their tokens; time is read from the injected clock.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ekiden.state.plan import BatchPlan, StepOutput
from ekiden.state.runner import ModelRunner


@dataclass(slots=True, kw_only=True, eq=False)
class Advance:
    runner: ModelRunner
    clock: Callable[[], float]

    def run(self, plan: BatchPlan) -> StepOutput:
        """Raises :class:`ekiden.state.runner.RunnerError`; nothing of a failed step may be used."""
        started = self.clock()
        output = self.runner.execute(plan)
        timing = msgspec.structs.replace(output.timing, started=started, total=self.clock() - started)
        return msgspec.structs.replace(output, timing=timing)
