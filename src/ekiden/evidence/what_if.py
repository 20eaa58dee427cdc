"""What would have been: a recorded load under another policy, with step times from a model fitted to the recorded ones.

The production engine core serves the recorded arrivals in virtual time. Answers have their recorded lengths; where a
request did not come to its end (refused, aborted, out of time) its length is unknown and the median of the finished
ones stands in. Of each answer is guessed ahead what could be (:mod:`ekiden.evidence.recorded_drafts`).
Clients that left leave at the recorded time; pauses are left out.

Its error is measured, not assumed: the same simulation under the recorded policy is compared with what was recorded.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from ekiden.config import controls_of
from ekiden.engine.engine_core import EngineCore, StepResult
from ekiden.engine.simulated import EngineSpeed, SimulatedRunner, simulate
from ekiden.evidence.decision_replay import config_of, joins_at_start, runner_info
from ekiden.evidence.period_rows import PeriodRows
from ekiden.evidence.reader import LedgerReader, request_detail_of
from ekiden.evidence.recorded_drafts import RecordedDrafter, recorded_drafts
from ekiden.evidence.recorded_requests import PromptMaker, request_of
from ekiden.evidence.recorded_speed import recorded_speed
from ekiden.ledger.blobs import RequestDetail
from ekiden.ledger.records import REFUSED, RequestRow, RunHeader
from ekiden.measure.percentiles import median, percentiles
from ekiden.state.request import FinishReason, Request
from ekiden.state.sampling_params import SamplingParams

WHOLE = (FinishReason.STOP.value, FinishReason.LENGTH.value)
"""How a request ends that is answered whole."""


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


@dataclass(frozen=True, slots=True)
class Fared:
    """How one request fared: seconds from arrival to first token and to its end, and how it ended."""

    ttft: float | None
    e2e: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """One request in each of the three; None where it did not end."""

    recorded: Fared | None
    same: Fared | None
    other: Fared | None


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
    requests: int
    followed: Followed | None = None


def what_if(
    reader: LedgerReader,
    overrides: dict[str, Any],
    *,
    num_blocks: int | None = None,
    speed: EngineSpeed | None = None,
    part: tuple[int, int] | None = None,
    follow: int | None = None,
) -> WhatIf:
    """Serve the recorded load again with some settings of the scheduler, or the size of the pool, changed.

    ``speed`` is that of the run itself unless another is given. ``part``: only the requests that arrived in these
    microseconds of the run, by the speed of its turns then; the engine begins it without work. ``follow``: the number
    of a request that is told of by itself. Raises :class:`ekiden.config.ConfigError` for settings that cannot work.
    """
    header, load = reader.header, _Load(reader, part)
    turns = reader.bounds() if part is None else PeriodRows(reader).turns_of(*part)
    speed = speed or recorded_speed(reader.turns(*turns))
    scheduler, blocks = {**header.scheduler, **overrides}, num_blocks or header.num_blocks
    changed = msgspec.structs.replace(header, scheduler=scheduler, num_blocks=blocks)
    (same, one_same), (other, one_other) = (_simulate(settings, load, speed, follow) for settings in (header, changed))
    recorded = load.recorded
    pairs = [(getattr(same, name), getattr(recorded, name)) for name in ("ttft_p50", "ttft_p99", "e2e_p50", "e2e_p99")]
    return WhatIf(
        recorded=recorded,
        same=same,
        other=other,
        error=max((abs(new - old) / old for new, old in pairs if old > 0), default=0.0),
        step_error=speed.median_error,
        unknown_lengths=load.unknown_lengths,
        requests=len(load.requests),
        followed=None if follow is None else Followed(recorded=load.fared.get(follow), same=one_same, other=one_other),
    )


class _Load:
    """The recorded requests as they are offered again, in order of arrival, and when clients left."""

    def __init__(self, reader: LedgerReader, part: tuple[int, int] | None) -> None:
        header = reader.header
        prompts = PromptMaker(vocab_size=header.vocab_size, block_size=header.block_size)
        rows = reader.all_requests() if part is None else reader.requests_arrived(*part)
        told = {row: detail for row in rows if not (detail := request_detail_of(row)).by_door}
        numbers = {row.request for row in told}
        ends = PeriodRows(reader).ends(sorted(numbers))
        lengths = {end.request: end.output_tokens for end in ends.values() if end.reason in WHOLE}
        read = {row.request for row, detail in told.items() if detail.reading is not None}
        answers = [length for number, length in lengths.items() if number not in read]
        typical = int(median(answers)) if answers else 1
        self.unknown_lengths = len(numbers - lengths.keys())
        self.leaves = [(e.at / 1e6, str(e.request)) for e in ends.values() if e.reason == FinishReason.ABORT]
        drafts = recorded_drafts(reader, list(told), max((end.turn for end in ends.values()), default=0))
        self.drafts = {str(number): found for number, found in drafts.items()}
        self.requests: list[Request] = []
        for row, detail in told.items():
            room = row.max_tokens or header.max_model_len - row.prompt_tokens
            if row.prompt_tokens and (room > 0 or row.request in read) and detail.bad_token is None:
                least = 0 if lengths.get(row.request) == 0 else 1
                length = max(least, min(lengths.get(row.request, typical), room))
                self.requests.append(offered_again(row, detail, prompts.prompt(row, detail), length, header))
        self.requests.sort(key=lambda request: request.arrival_time)
        pairs = [(row, ends[row.request]) for row in told if row.request in ends]
        ended = [(end.reason, row.seconds_until(end.first_token), end.e2e / 1e6) for row, end in pairs]
        numbered = zip((row.request for row, _ in pairs), ended, strict=True)
        self.fared = {number: Fared(first, last, reason) for number, (reason, first, last) in numbered}
        span = max((end.at for end in ends.values()), default=0) - min((row.arrival for row in told), default=0)
        self.recorded = _figures(ended, span / 1e6)


def offered_again(
    row: RequestRow, detail: RequestDetail, prompt: tuple[int, ...], length: int, header: RunHeader
) -> Request:
    """A recorded request for a simulation, which answers it with ``length`` tokens. Its id is its number."""
    return msgspec.structs.replace(
        request_of(row, detail, prompt),
        request_id=str(row.request),
        carried=None,
        sampling=SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True),
        arrival_time=row.arrival / 1e6,
        deadline=None if detail.deadline is None else detail.deadline - header.clock_base / 1e6,
    )


def _figures(ended: list[tuple[str, float | None, float]], duration: float) -> Figures:
    """``ended``: the reason, the time to first token and the time to the end of each request, refused ones included."""
    whole = [(first, last) for reason, first, last in ended if reason in WHOLE]
    refused = sum(reason == REFUSED for reason, _, _ in ended)
    firsts, lasts = [first for first, _ in whole if first is not None], [last for _, last in whole]
    points = (percentiles(values, (50, 99)) if values else (0.0, 0.0) for values in (firsts, lasts))
    (ttft_p50, ttft_p99), (e2e_p50, e2e_p99) = points
    cut = len(ended) - refused - len(whole)
    return Figures(len(whole), refused, cut, ttft_p50, ttft_p99, e2e_p50, e2e_p99, duration)


def _simulate(header: RunHeader, load: _Load, speed: EngineSpeed, follow: int | None) -> tuple[Figures, Fared | None]:
    """One run in virtual time, and how one request fared in it."""
    model, config, drafter = SimulatedRunner(speed, info=runner_info(header)), config_of(header), RecordedDrafter()
    for request in load.requests:
        drafter.know(request, load.drafts.get(request.request_id))
    core = EngineCore(
        runner=model,
        controls=controls_of(config),
        cache=config.cache,
        clock=model.clock.now,
        max_model_len=header.max_model_len,
        drafter=drafter,
        joins_at_start=joins_at_start(header),
    )
    ended: list[tuple[str, float | None, float]] = []
    followed: list[Fared] = []

    def note(result: StepResult) -> None:
        for update in result.updates:
            if update.refusal is not None:
                ended.append((REFUSED, None, 0.0))
            elif (end := update.finish) is not None:
                first = None if end.first_token_time is None else end.first_token_time - end.arrival_time
                ended.append((end.reason.value, first, end.finish_time - end.arrival_time))
            else:
                continue
            if update.request_id == str(follow):
                reason, first, last = ended[-1]
                followed.append(Fared(first, last, reason))

    simulate(core, model.clock, load.requests, note, gap=speed.gap, aborts=load.leaves)
    began = load.requests[0].arrival_time if load.requests else 0.0
    return _figures(ended, model.clock.time - began), followed[0] if followed else None
