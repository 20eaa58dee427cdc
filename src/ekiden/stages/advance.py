"""Stage 3, advance: hand the plan to the runner and measure how long it takes.

The runner computes the rows and chooses their tokens; time is read from the injected clock.
"""

from collections.abc import Callable

import msgspec

from ekiden.state.plan import BatchPlan, StepOutput
from ekiden.state.runner import ModelRunner


class Advance:
    def __init__(self, *, runner: ModelRunner, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._clock = clock

    def run(self, plan: BatchPlan) -> StepOutput:
        """Raises :class:`ekiden.state.runner.RunnerError`; nothing of a failed step may be used."""
        started = self._clock()
        output = self._runner.execute(plan)
        timing = msgspec.structs.replace(output.timing, started=started, total=self._clock() - started)
        return msgspec.structs.replace(output, timing=timing)
