"""A model in virtual time: the production engine core serves a load as fast as a fitted step-time model says.

A :class:`SimulatedRunner` takes the place of the model. A step moves its clock by what its load costs, times a noise
that a seed decides; nothing is computed, unless an inner runner (the fake one, say) is to make tokens that depend on
the prefix. What lies between two steps of a busy engine is the :class:`EngineSpeed`'s ``gap``. Swapping blocks costs
nothing here. What-if, the evaluation's simulations and the projections to larger fleets all run on this.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ekiden.engine.driver import Sink, VirtualClock, arrivals, drive
from ekiden.engine.engine_core import EngineCore, StepResult
from ekiden.engine.step_time import StepCost, fitted, load_of
from ekiden.measure.percentiles import median, percentiles
from ekiden.state.plan import NO_TOKENS, BatchPlan, Row, RowResult, StepOutput, StepTiming
from ekiden.state.policy import StepLoad
from ekiden.state.request import Request
from ekiden.state.runner import ModelRunner, RunnerInfo
from ekiden.state.sampling_params import BIAS

TOKEN = 0
"""What every answer consists of, where no inner runner makes tokens."""
LEAST_STEP = 1e-6
"""Seconds that a step takes at least, so that time passes."""
_TENTH_TO_NINETIETH = 2.563
"""Standard deviations between p10 and p90 of a normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeed:
    """How long a machine takes for the steps of a model, and how well that is known. Times are seconds."""

    cost: StepCost
    gap: float = 0.0
    """Between two steps of a busy engine: the median."""
    median_error: float = 0.0
    """Median of |predicted - measured| / measured over the steps that it was fitted to."""
    spread: float = 0.0
    """Standard deviation of ln(measured / predicted), from p10 and p90, so that stalls do not decide it."""
    steps: int = 0
    """Steps that it was fitted to."""

    def seconds(self, load: StepLoad) -> float:
        return max(LEAST_STEP, self.cost.seconds(load))

    def alone_seconds(self, prompt_tokens: int, output_tokens: int, *, budget: int) -> float:
        """End-to-end time of one request on an idle engine that computes ``budget`` prompt tokens in a step."""
        total = 0.0
        for start in range(0, prompt_tokens, budget):
            count = min(budget, prompt_tokens - start)
            total += self.gap + self.seconds(StepLoad(0, 0, count, count * (start + count // 2)))
        more = max(0, output_tokens - 1)
        # The context grows by one with each token: its mean stands for all of them.
        return (
            total
            + more * (self.gap + self.cost.step + self.cost.decode_row)
            + self.cost.decode_context * more * (prompt_tokens + (more - 1) / 2)
        )


def fitted_speed(loads: Sequence[StepLoad], seconds: Sequence[float], gaps: Sequence[float]) -> EngineSpeed:
    """The speed that measured steps and the times between them show; all zero without steps."""
    cost = fitted(loads, seconds)
    predicted = [max(LEAST_STEP, cost.seconds(load)) for load in loads]
    errors = [abs(point - took) / took for point, took in zip(predicted, seconds, strict=True)]
    logs = [math.log(took / point) for point, took in zip(predicted, seconds, strict=True)]
    low, high = percentiles(logs, (10, 90)) if logs else (0.0, 0.0)
    return EngineSpeed(
        cost=cost,
        gap=median(gaps) if gaps else 0.0,
        median_error=median(errors) if errors else 0.0,
        spread=(high - low) / _TENTH_TO_NINETIETH,
        steps=len(loads),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How a step's time departs from the model: a log-normal factor of its own, and a slow drift of the machine.

    ``step`` and ``drift`` are standard deviations of logarithms; the drift forgets itself over ``drift_seconds``
    (an Ornstein-Uhlenbeck process in virtual time, which begins in its long-run distribution).
    """

    step: float = 0.0
    drift: float = 0.0
    drift_seconds: float = 30.0


NO_NOISE = Noise()


class SimulatedRunner:
    """A :class:`~ekiden.state.runner.ModelRunner` in virtual time.

    Without ``inner`` every token is :data:`TOKEN`. One that the bias of a row makes the only choice is given as soon as
    ``min_tokens`` allows it, as a sampler would. ``slowdown`` multiplies the time of every step: a planted regression.
    """

    def __init__(
        self,
        speed: EngineSpeed,
        *,
        info: RunnerInfo,
        inner: ModelRunner | None = None,
        noise: Noise = NO_NOISE,
        seed: int | Sequence[int] = 0,
        slowdown: float = 1.0,
    ) -> None:
        self.info = info
        self.clock = VirtualClock()
        self.steps = 0
        self.busy_seconds = 0.0
        """Time in steps."""
        self.speed = speed
        """May be replaced between two steps."""
        self._inner = inner
        self._noise = noise
        self._random = np.random.default_rng(seed)
        self._slowdown = slowdown
        self._drift = noise.drift * float(self._random.standard_normal()) if noise.drift else 0.0
        self._drifted_at = 0.0

    def execute(self, plan: BatchPlan) -> StepOutput:
        seconds = self.speed.seconds(load_of(plan)) * self._slowdown * self._factor()
        self.clock.time += seconds
        self.steps += 1
        self.busy_seconds += seconds
        if self._inner is not None:
            given = self._inner.execute(plan).rows
        else:
            given = [NO_TOKENS if row.sampling is None else _same_tokens(row) for row in plan.rows]
        results = [_forced(row, result) for row, result in zip(plan.rows, given, strict=True)]
        return StepOutput(rows=results, timing=StepTiming(model=seconds))

    def _factor(self) -> float:
        noise, log = self._noise, 0.0
        if noise.drift:
            now = self.clock.time
            kept = math.exp(-(now - self._drifted_at) / noise.drift_seconds)
            fresh = noise.drift * math.sqrt(1.0 - kept * kept)
            self._drift, self._drifted_at = kept * self._drift + fresh * float(self._random.standard_normal()), now
            log += self._drift
        if noise.step:
            log += noise.step * float(self._random.standard_normal())
        return math.exp(log) if log else 1.0

    def check(self) -> None:
        """It can always compute."""

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


_ONE_TOKEN = RowResult((TOKEN,))


def _same_tokens(row: Row) -> RowResult:
    """One token, and one more for each draft that is right as long as all before it are."""
    if not row.num_drafts:
        return _ONE_TOKEN
    drafts = row.token_ids[-row.num_drafts :]
    right = next((place for place, draft in enumerate(drafts) if draft != TOKEN), len(drafts))
    return RowResult((TOKEN,) * (1 + right))


def _forced(row: Row, result: RowResult) -> RowResult:
    """The result, with the token that the row's bias leaves as the only choice."""
    sampling = row.sampling
    if sampling is None or not sampling.params.logit_bias:
        return result
    free = max(0, sampling.params.min_tokens - (row.end - row.num_drafts - sampling.num_prompt_tokens))
    highest = [token for token, bias in sampling.params.logit_bias.items() if bias == BIAS.most]
    forced = highest and len(result.tokens) > free
    return RowResult((*result.tokens[:free], min(highest))) if forced else result


def simulate(
    core: EngineCore,
    clock: VirtualClock,
    requests: Iterable[Request],
    sink: Sink,
    *,
    gap: float = 0.0,
    aborts: Iterable[tuple[float, str]] = (),
) -> None:
    """Serve requests to their ends in the virtual time of ``clock``, with ``gap`` seconds after each step."""

    def after_step(result: StepResult) -> None:
        sink(result)
        if result.computed:
            clock.time += gap

    drive(core, arrivals(core, clock, requests, aborts=aborts), clock, after_step)
