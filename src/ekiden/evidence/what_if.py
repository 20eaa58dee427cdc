"""What would have been: a recorded load under another policy, with step times from a model fitted to the recorded ones.

The production engine core serves the recorded arrivals in virtual time. Answers have their recorded lengths; where a
request did not come to its end (refused, aborted, out of time) its length is unknown and the median of the finished
ones stands in. Clients that left leave at the recorded time; pauses are left out.

Its error is measured, not assumed: the same simulation under the recorded policy is compared with what was recorded.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ekiden.config import SchedulerConfig, controls_of
from ekiden.engine.driver import VirtualClock, arrivals, drive
from ekiden.engine.engine_core import EngineCore, StepResult
from ekiden.engine.step_time import fitted, load_of
from ekiden.evidence.decision_replay import config_of, runner_info
from ekiden.evidence.reader import LedgerReader, request_detail_of
from ekiden.evidence.recorded_requests import PromptMaker
from ekiden.ledger.records import REFUSED, EndRow, RequestRow, RunHeader, TurnRow
from ekiden.measure.percentiles import median, percentiles
from ekiden.state.plan import NO_TOKENS, BatchPlan, RowResult, StepOutput, StepTiming
from ekiden.state.policy import StepLoad
from ekiden.state.request import Finish, FinishReason, Request
from ekiden.state.runner import RunnerInfo
from ekiden.state.sampling_params import SamplingParams

_WHOLE = (FinishReason.STOP.value, FinishReason.LENGTH.value)
_ONE_TOKEN = RowResult((0,))


@dataclass(frozen=True, slots=True, kw_only=True)
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
        loads, measured = [_load_of(row) for row in steps], [row.took / 1e6 for row in steps]
        self._cost = fitted(loads, measured)
        errors = [abs(self.seconds(load) - took) / took for load, took in zip(loads, measured, strict=True)]
        self.median_error = median(errors) if errors else 0.0
        self.gap = _median_gap(rows)

    def seconds(self, load: StepLoad) -> float:
        return max(1e-6, self._cost.seconds(load))


def _load_of(row: TurnRow) -> StepLoad:
    return StepLoad(
        decode_rows=row.decode_rows,
        decode_context=row.decode_context,
        prefill_tokens=row.prefill_tokens,
        prefill_pairs=row.prefill_pairs,
    )


def _median_gap(rows: list[TurnRow]) -> float:
    """Seconds between two steps of a busy engine."""
    pairs = pairwise(rows)
    gaps = [after.start - before.start - before.took for before, after in pairs if before.running and after.p50 > 0]
    return median(gaps) / 1e6 if gaps else 0.0


class _VirtualModel:
    """A runner that takes the fitted time and gives tokens that stop nothing."""

    def __init__(self, info: RunnerInfo, fitted: FittedStepTime) -> None:
        self.info = info
        self.clock = VirtualClock()
        self._fitted = fitted

    def execute(self, plan: BatchPlan) -> StepOutput:
        seconds = self._fitted.seconds(load_of(plan))
        self.clock.time += seconds
        results = [NO_TOKENS if row.sampling is None else _ONE_TOKEN for row in plan.rows]
        return StepOutput(rows=results, timing=StepTiming(model=seconds))

    def close(self) -> None:
        """There is no model."""


def what_if(reader: LedgerReader, overrides: dict[str, Any], *, num_blocks: int | None = None) -> WhatIf:
    """Serve the recorded load again with some settings of the scheduler, or the size of the pool, changed.

    Raises :class:`ekiden.config.ConfigError` for settings that cannot work.
    """
    header = reader.header
    fitted = FittedStepTime(reader.turns(*reader.bounds()))
    load = _Load(reader)
    info = runner_info(header)
    scheduler = {**header.scheduler, **overrides}
    same = _simulate(header, header.scheduler, info, load, fitted)
    other = _simulate(header, scheduler, replace(info, num_blocks=num_blocks or info.num_blocks), load, fitted)
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
        rows = [row for row in reader.all_requests() if not request_detail_of(row).by_door]
        numbers = {row.request for row in rows}
        ends = {end.request: end for end in reader.all_ends() if end.request in numbers}
        whole = [end.output_tokens for end in ends.values() if end.reason in _WHOLE]
        typical = max(1, int(median(whole))) if whole else 1
        self.unknown_lengths = 0
        self.requests: list[Request] = []
        self.leaves: list[tuple[float, str]] = []
        for row in rows:
            end = ends.get(row.request)
            name = str(row.request)
            if end is not None and end.reason == FinishReason.ABORT:
                self.leaves.append((end.at / 1e6, name))
            known = end is not None and end.reason in _WHOLE
            self.unknown_lengths += not known
            length = end.output_tokens if known and end is not None else typical
            detail = request_detail_of(row)
            room = row.max_tokens or header.max_model_len - row.prompt_tokens
            if row.prompt_tokens and room > 0 and detail.bad_token is None:
                prompt = prompts.prompt(row, detail)
                deadline = None if detail.deadline is None else detail.deadline - header.clock_base / 1e6
                self.requests.append(_offered(row, name, prompt, min(length, room), deadline))
        self.requests.sort(key=lambda request: request.arrival_time)
        self.recorded = _recorded_figures(rows, ends)


def _offered(row: RequestRow, name: str, prompt: tuple[int, ...], length: int, deadline: float | None) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=SamplingParams(temperature=0.0, max_tokens=max(1, length), ignore_eos=True),
        arrival_time=row.arrival / 1e6,
        tenant=row.tenant,
        priority=row.priority,
        deadline=deadline,
    )


def _recorded_figures(rows: list[RequestRow], ends: dict[int, EndRow]) -> Figures:
    arrived = {row.request: row.arrival for row in rows}
    whole = [end for end in ends.values() if end.reason in _WHOLE and end.request in arrived]
    firsts = [(end.first_token - arrived[end.request]) / 1e6 for end in whole if end.first_token is not None]
    reasons = [end.reason for end in ends.values()]
    span = max((end.at for end in ends.values()), default=0) - min(arrived.values(), default=0)
    return _figures(firsts, [end.e2e / 1e6 for end in whole], reasons.count(REFUSED), len(reasons), span / 1e6)


def _figures(firsts: list[float], whole: list[float], refused: int, ended: int, duration: float) -> Figures:
    ttft, e2e = (percentiles(values, (50, 99)) if values else (0.0, 0.0) for values in (firsts, whole))
    return Figures(
        finished=len(whole),
        refused=refused,
        cut=ended - refused - len(whole),
        ttft_p50=ttft[0],
        ttft_p99=ttft[1],
        e2e_p50=e2e[0],
        e2e_p99=e2e[1],
        duration=duration,
    )


def _simulate(
    header: RunHeader, scheduler: dict[str, Any], info: RunnerInfo, load: _Load, fitted: FittedStepTime
) -> Figures:
    """One run in virtual time."""
    model = _VirtualModel(info, fitted)
    config = replace(config_of(header), scheduler=SchedulerConfig(**scheduler))
    core = EngineCore(
        runner=model,
        controls=controls_of(config),
        cache=config.cache,
        clock=model.clock.now,
        max_model_len=header.max_model_len,
    )
    finishes: list[Finish] = []
    refused = 0

    def after_step(result: StepResult) -> None:
        nonlocal refused
        finishes.extend(update.finish for update in result.updates if update.finish is not None)
        refused += sum(update.refusal is not None for update in result.updates)
        if result.computed:
            model.clock.time += fitted.gap

    drive(core, arrivals(core, model.clock, load.requests, aborts=load.leaves), model.clock, after_step)
    whole = [finish for finish in finishes if finish.reason.value in _WHOLE]
    firsts = [f.first_token_time - f.arrival_time for f in whole if f.first_token_time is not None]
    times = [finish.finish_time - finish.arrival_time for finish in whole]
    began = load.requests[0].arrival_time if load.requests else 0.0
    return _figures(firsts, times, refused, len(finishes) + refused, model.clock.time - began)
