"""Stage 3, advance: run the model on a plan and choose a token for each row that reached its end.

The runner and the sampler are handed in; time is measured with the injected clock. A step may take several passes of
the compiled model; each pass's logits are sampled before the next one runs, since the backend may reuse their memory.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ekiden.sampling.logprobs import prompt_token_logprobs
from ekiden.state.plan import BatchPlan, StepOutput, StepTiming
from ekiden.state.request import TokenLogprobs
from ekiden.state.sequence import Sequence


class Pass(Protocol):
    """The logits of some rows of a plan; see :class:`ekiden.backends.base.PassOutput`."""

    @property
    def rows(self) -> list[int]: ...
    @property
    def logits(self) -> npt.NDArray[np.float32]: ...
    @property
    def model_seconds(self) -> float: ...
    @property
    def padding_rows(self) -> int: ...
    @property
    def prompt_positions(self) -> list[tuple[int, int]]: ...


class Runner(Protocol):
    def execute(self, plan: BatchPlan) -> Iterator[Pass]: ...


class RowSampler(Protocol):
    def sample(
        self, logits: npt.NDArray[np.float32], sequences: list[Sequence]
    ) -> tuple[list[int], list[TokenLogprobs | None] | None]:
        """A token for each row, and log-probabilities where a row asked for them (None when no row did)."""
        ...


class Advance:
    def __init__(self, *, runner: Runner, sampler: RowSampler, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._sampler = sampler
        self._clock = clock

    def run(self, plan: BatchPlan) -> StepOutput:
        """Raises what the runner raises; nothing of a failed step may be used."""
        start = self._clock()
        tokens: list[tuple[int, ...]] = [()] * len(plan.sequences)
        logprobs: list[TokenLogprobs | None] | None = None
        prompt: dict[int, list[TokenLogprobs]] = {}
        model = sampling = 0.0
        padding_rows = passes = 0
        for output in self._runner.execute(plan):
            began = self._clock()
            rows = output.rows
            if rows:
                last = output.logits[: len(rows)]
                chosen, details = self._sampler.sample(last, [plan.sequences[row] for row in rows])
                for row, token in zip(rows, chosen, strict=True):
                    tokens[row] = (token,)
                if details is not None:
                    logprobs = logprobs or [None] * len(plan.sequences)
                    for row, detail in zip(rows, details, strict=True):
                        logprobs[row] = detail
            if output.prompt_positions:
                _note_prompt(plan, output, prompt)
            sampling += self._clock() - began
            model += output.model_seconds
            padding_rows += output.padding_rows
            passes += 1
        return StepOutput(
            tokens=tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt,
            timing=StepTiming(started=start, total=self._clock() - start, model=model, sampling=sampling),
            padding_rows=padding_rows,
            passes=passes,
        )


def _note_prompt(plan: BatchPlan, output: Pass, found: dict[int, list[TokenLogprobs]]) -> None:
    """How likely the prompt's own tokens were; the logits of its positions come after those of the rows."""
    for logits, (row, position) in zip(output.logits[len(output.rows) :], output.prompt_positions, strict=True):
        sequence = plan.sequences[row]
        num_top = sequence.request.sampling.prompt_logprobs or 0
        found.setdefault(row, []).append(prompt_token_logprobs(logits, sequence.token_ids[position + 1], num_top))
