"""Stage 3, advance: hand the plan to the runner and measure how long it takes.

The runner computes the rows and chooses their tokens; time is read from the injected clock.

A step that fails is run again, once, without its copies of blocks, which have been made. If it fails again its rows are
halved until those that cause it are alone, and fail alone twice; they end with the error, and all others have the very
tokens that they would have had, because a row depends on no other (:class:`~ekiden.state.runner.ModelRunner`). When no
row at all can be computed, the runner is asked to compute something of its own: if it cannot do that either, it is
broken, and so is the process.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ekiden.state.containment import NOT_OF_ONE_REQUEST, cause_of
from ekiden.state.plan import NO_TOKENS, BatchPlan, Row, RowResult, StepOutput, StepTiming
from ekiden.state.runner import CopiesLost, ModelRunner, RunnerBroken

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class Advance:
    runner: ModelRunner
    clock: Callable[[], float]

    def run(self, plan: BatchPlan) -> StepOutput:
        """Raises :class:`CopiesLost` and :class:`RunnerBroken`; nothing of such a step may be used."""
        started = self.clock()
        output = self._try(plan)
        if isinstance(output, BaseException):
            logger.error("a step of %d rows failed and is run again", len(plan.rows), exc_info=output)
            output = self._try_again(plan.rows)
        timing = msgspec.structs.replace(output.timing, started=started, total=self.clock() - started)
        return msgspec.structs.replace(output, timing=timing)

    def _try(self, plan: BatchPlan) -> StepOutput | BaseException:
        """What the runner gives for the plan, or the exception for which one of its rows may be to blame."""
        try:
            return self.runner.execute(plan)
        except (CopiesLost, RunnerBroken, *NOT_OF_ONE_REQUEST):
            raise
        except BaseException as error:  # noqa: BLE001 - a panic of a library in Rust is no Exception
            return error

    def _try_again(self, rows: list[Row]) -> StepOutput:
        """Run the rows again, all at first, then halves of those that fail."""
        results = [NO_TOKENS] * len(rows)
        outputs: list[StepOutput] = []
        attempts, pending = 1, [range(len(rows))]
        while pending:
            part = pending.pop()
            tried = BatchPlan([rows[index] for index in part])
            output = self._try(tried)
            attempts += 1
            if not isinstance(output, StepOutput) and len(part) == 1 < len(rows):
                output = self._try(tried)  # alone for the first time, so that it may have failed by chance
                attempts += 1
            if isinstance(output, StepOutput):
                outputs.append(output)
                for index, result in zip(part, output.rows, strict=True):
                    results[index] = result
            elif len(part) > 1:
                middle = len(part) // 2
                pending += [part[middle:], part[:middle]]
            else:
                logger.error("a row fails alone: it ends with the error", exc_info=output)
                for index in part:
                    results[index] = RowResult(error=f"the model could not compute it: {cause_of(output)}")
        if not outputs:
            self._check_runner()
        return StepOutput(
            rows=results,
            timing=StepTiming(
                model=sum(output.timing.model for output in outputs),
                sampling=sum(output.timing.sampling for output in outputs),
            ),
            padding_rows=sum(output.padding_rows for output in outputs),
            passes=sum(output.passes for output in outputs),
            new_sizes=sum(output.new_sizes for output in outputs),
            attempts=attempts,
        )

    def _check_runner(self) -> None:
        try:
            self.runner.check()
        except Exception as error:
            raise RunnerBroken(f"the model can compute nothing any more: {cause_of(error)}") from error
