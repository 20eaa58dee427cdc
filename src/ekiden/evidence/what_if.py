"""What would have been: a recorded load under another policy, with step times from a model fitted to the recorded ones.

The production engine core serves the recorded arrivals in virtual time. Answers have their recorded lengths; where a
request did not come to its end (refused, aborted, out of time) its length is unknown and the median of the finished
ones stands in. Clients that left leave at the recorded time; pauses are left out.

Its error is measured, not assumed: the same simulation under the recorded policy is compared with what was recorded.
"""

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import msgspec

from ekiden.config import controls_of
from ekiden.engine.driver import VirtualClock, arrivals, drive
from ekiden.engine.engine_core import EngineCore, StepResult
from ekiden.engine.step_time import fitted, load_of
from ekiden.evidence.decision_replay import config_of, runner_info
from ekiden.evidence.reader import LedgerReader, request_detail_of
from ekiden.evidence.recorded_requests import PromptMaker, request_of
from ekiden.ledger.records import REFUSED, RunHeader, TurnRow
from ekiden.measure.percentiles import median, percentiles
from ekiden.state.plan import NO_TOKENS, BatchPlan, RowResult, StepOutput, StepTiming
from ekiden.state.policy import StepLoad
from ekiden.state.request import FinishReason, Request
from ekiden.state.runner import RunnerInfo
from ekiden.state.sampling_params import SamplingParams

_WHOLE = (FinishReason.STOP.value, FinishReason.LENGTH.value)


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds over the requests that ended by themselves; ``refused`` and ``cut`` are counts of the others."""

    finished: int
    refused: int
    cut: int
    ttft_p50: float
    ttft_p99: float
    e2e_p50: float
    e2e_p99: float
    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """``recorded`` is what happened; ``same`` is the simulation of it, ``other`` that under the other settings.

    ``error`` is the largest relative difference between the figures of ``same`` and ``recorded``; ``step_error`` the
    median relative error of the step-time model over the recorded steps.
    """

    recorded: Figures
    same: Figures
    other: Figures
    error: float
    step_error: float
    unknown_lengths: int


class FittedStepTime:
    """The step-time model of the recorded steps, its median relative error, and the median time between steps."""

    def __init__(self, rows: list[TurnRow]) -> None:
        steps = [row for row in rows if row.p50 > 0 and row.took > 0]
        names, measured = [field.name for field in fields(StepLoad)], [row.took / 1e6 for row in steps]
        loads = [StepLoad(**{name: getattr(row, name) for name in names}) for row in steps]
        self._cost = fitted(loads, measured)
        errors = [abs(self.seconds(load) - took) / took for load, took in zip(loads, measured, strict=True)]
        self.median_error = median(errors) if errors else 0.0
        pairs = pairwise(rows)
        gaps = [after.start - before.end for before, after in pairs if before.running and after.p50 > 0]
        self.gap = median(gaps) / 1e6 if gaps else 0.0
        """Seconds between two steps of a busy engine."""

    def seconds(self, load: StepLoad) -> float:
        return max(1e-6, self._cost.seconds(load))


class _VirtualModel:
    """A runner that takes the fitted time and gives tokens that stop nothing."""

    def __init__(self, info: RunnerInfo, fitted: FittedStepTime) -> None:
        self.info = info
        self.clock = VirtualClock()
        self._fitted = fitted

    def execute(self, plan: BatchPlan) -> StepOutput:
        seconds = self._fitted.seconds(load_of(plan))
        self.clock.time += seconds
        results = [NO_TOKENS if row.sampling is None else RowResult((0,)) for row in plan.rows]
        return StepOutput(rows=results, timing=StepTiming(model=seconds))

    def check(self) -> None:
        """It can always compute."""

    def close(self) -> None:
        """There is no model."""


def what_if(reader: LedgerReader, overrides: dict[str, Any], *, num_blocks: int | None = None) -> WhatIf:
    """Serve the recorded load again with some settings of the scheduler, or the size of the pool, changed.

    Raises :class:`ekiden.config.ConfigError` for settings that cannot work.
    """
    header, load, fitted = reader.header, _Load(reader), FittedStepTime(reader.turns(*reader.bounds()))
    scheduler, blocks = {**header.scheduler, **overrides}, num_blocks or header.num_blocks
    changed = msgspec.structs.replace(header, scheduler=scheduler, num_blocks=blocks)
    same, other = (_simulate(settings, load, fitted) for settings in (header, changed))
    recorded = load.recorded
    pairs = [(getattr(same, name), getattr(recorded, name)) for name in ("ttft_p50", "ttft_p99", "e2e_p50", "e2e_p99")]
    return WhatIf(
        recorded=recorded,
        same=same,
        other=other,
        error=max((abs(new - old) / old for new, old in pairs if old > 0), default=0.0),
        step_error=fitted.median_error,
        unknown_lengths=load.unknown_lengths,
    )


class _Load:
    """The recorded requests as they are offered again, in order of arrival, and when clients left."""

    def __init__(self, reader: LedgerReader) -> None:
        header = reader.header
        prompts = PromptMaker(vocab_size=header.vocab_size, block_size=header.block_size)
        told = {row: detail for row in reader.all_requests() if not (detail := request_detail_of(row)).by_door}
        numbers = {row.request for row in told}
        ends = {end.request: end for end in reader.all_ends() if end.request in numbers}
        lengths = {end.request: end.output_tokens for end in ends.values() if end.reason in _WHOLE}
        read = {row.request for row, detail in told.items() if detail.reading is not None}
        answers = [length for number, length in lengths.items() if number not in read]
        typical = int(median(answers)) if answers else 1
        self.unknown_lengths = len(numbers - lengths.keys())
        self.leaves = [(e.at / 1e6, str(e.request)) for e in ends.values() if e.reason == FinishReason.ABORT]
        self.requests: list[Request] = []
        for row, detail in told.items():
            room = row.max_tokens or header.max_model_len - row.prompt_tokens
            if row.prompt_tokens and (room > 0 or row.request in read) and detail.bad_token is None:
                least = 0 if lengths.get(row.request) == 0 else 1
                length = max(least, min(lengths.get(row.request, typical), room))
                offered = msgspec.structs.replace(
                    request_of(row, detail, prompts.prompt(row, detail)),
                    request_id=str(row.request),
                    carried=None,
                    sampling=SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True),
                    arrival_time=row.arrival / 1e6,
                    deadline=None if detail.deadline is None else detail.deadline - header.clock_base / 1e6,
                )
                self.requests.append(offered)
        self.requests.sort(key=lambda request: request.arrival_time)
        pairs = [(row, ends[row.request]) for row in told if row.request in ends]
        ended = [(end.reason, row.seconds_until(end.first_token), end.e2e / 1e6) for row, end in pairs]
        span = max((end.at for end in ends.values()), default=0) - min((row.arrival for row in told), default=0)
        self.recorded = _figures(ended, span / 1e6)


def _figures(ended: list[tuple[str, float | None, float]], duration: float) -> Figures:
    """``ended``: the reason, the time to first token and the time to the end of each request, refused ones included."""
    whole = [(first, last) for reason, first, last in ended if reason in _WHOLE]
    refused = sum(reason == REFUSED for reason, _, _ in ended)
    firsts, lasts = [first for first, _ in whole if first is not None], [last for _, last in whole]
    points = (percentiles(values, (50, 99)) if values else (0.0, 0.0) for values in (firsts, lasts))
    (ttft_p50, ttft_p99), (e2e_p50, e2e_p99) = points
    cut = len(ended) - refused - len(whole)
    return Figures(len(whole), refused, cut, ttft_p50, ttft_p99, e2e_p50, e2e_p99, duration)


def _simulate(header: RunHeader, load: _Load, fitted: FittedStepTime) -> Figures:
    """One run in virtual time."""
    model, config = _VirtualModel(runner_info(header), fitted), config_of(header)
    core = EngineCore(
        runner=model,
        controls=controls_of(config),
        cache=config.cache,
        clock=model.clock.now,
        max_model_len=header.max_model_len,
    )
    ended: list[tuple[str, float | None, float]] = []

    def after_step(result: StepResult) -> None:
        for update in result.updates:
            if update.refusal is not None:
                ended.append((REFUSED, None, 0.0))
            if (end := update.finish) is not None:
                first = None if end.first_token_time is None else end.first_token_time - end.arrival_time
                ended.append((end.reason.value, first, end.finish_time - end.arrival_time))
        if result.computed:
            model.clock.time += fitted.gap

    drive(core, arrivals(core, model.clock, load.requests, aborts=load.leaves), model.clock, after_step)
    began = load.requests[0].arrival_time if load.requests else 0.0
    return _figures(ended, model.clock.time - began)
