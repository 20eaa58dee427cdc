"""The shadow's two engine cores in virtual time, and the requests that the ledger gives them."""

import math
from collections import deque
from collections.abc import Iterator
from typing import Final

from ekiden.config import CacheConfig
from ekiden.engine.driver import drive
from ekiden.engine.engine_core import EngineCore, StepResult
from ekiden.engine.simulated import EngineSpeed, SimulatedRunner
from ekiden.engine.step_time import StepCost
from ekiden.evidence.decision_replay import config_of, runner_info
from ekiden.evidence.reader import LedgerReader, request_detail_of
from ekiden.evidence.recorded_drafts import AnswerDrafts, DraftReader, RecordedDrafter
from ekiden.evidence.recorded_requests import PromptMaker
from ekiden.evidence.recorded_speed import recorded_speed
from ekiden.evidence.what_if import WHOLE, offered_again
from ekiden.ledger.records import REFUSED, EndRow, RequestRow, RunHeader
from ekiden.measure.percentiles import median
from ekiden.release.shadow_report import Outcome
from ekiden.state.controls import Controls
from ekiden.state.request import Request

MOST_BLOCKS: Final = 200_000
_AT_ONCE: Final = 64
"""Requests read at once."""
_FIT_TURNS: Final = 400
_FIT_SECONDS: Final = 60.0
_NO_COST: Final = StepCost(0.0, 0.0, 0.0, 0.0, 0.0)


class Arm:
    """One engine core in virtual time."""

    def __init__(
        self, header: RunHeader, controls: Controls, cache: CacheConfig, speed: EngineSpeed, at: float
    ) -> None:
        self.runner = SimulatedRunner(speed, info=runner_info(header))
        self.clock = self.runner.clock
        self.clock.time = at
        self.outcomes: dict[int, Outcome] = {}
        self._due: deque[Request] = deque()
        self._drafter = RecordedDrafter()
        self._core = EngineCore(
            runner=self.runner,
            controls=controls,
            cache=cache,
            clock=self.clock.now,
            max_model_len=header.max_model_len,
            drafter=self._drafter,
        )

    def offer(self, request: Request, drafts: AnswerDrafts | None) -> None:
        self._drafter.know(request, drafts)
        self._due.append(request)

    def advance(self, until: float) -> None:
        """Serve until a virtual time, or a step beyond it."""
        drive(self._core, self._source(until), self.clock, self._note)

    def _source(self, until: float) -> Iterator[float]:
        while self.clock.time < until:
            while self._due and self._due[0].arrival_time <= self.clock.time:
                self._core.add_request(self._due.popleft())
            yield min(self._due[0].arrival_time, until) if self._due else until

    def _note(self, result: StepResult) -> None:
        for update in result.updates:
            if update.refusal is not None:
                self.outcomes[int(update.request_id)] = Outcome(None, None)
            if (end := update.finish) is not None:
                first = None if end.first_token_time is None else end.first_token_time - end.arrival_time
                e2e = end.finish_time - end.arrival_time
                whole = end.reason.value in WHOLE
                outcome = Outcome(first, e2e, end.num_output_tokens) if whole else Outcome(None, None)
                self.outcomes[int(update.request_id)] = outcome
            if update.terminal:
                self._drafter.forget(update.request_id)
        if result.computed:
            self.clock.time += self.runner.speed.gap


class World:
    """All that depends on one run of the engine under unchanged controls, from a time of the run on."""

    def __init__(self, reader: LedgerReader, controls: Controls, changed: Controls, at: float) -> None:
        """What was in the engine before is not known to the simulation, and soon gone."""
        header = self.header = reader.header
        speed, cache = EngineSpeed(cost=_NO_COST), config_of(header).cache
        self.controls = controls
        self.production = Arm(header, controls, cache, speed, at)
        self.candidate = Arm(header, changed, cache, speed, at)
        self.recorded: dict[int, Outcome] = {}
        self.arrivals: deque[tuple[float, int]] = deque()
        self.unknown_lengths = 0
        self.step_error = 0.0
        first = reader.requests_arrived(round(at * 1e6), 2**62)
        newest = reader.requests_newest()
        self._number = min((row.request for row in first), default=newest + 1) - 1
        """Of the newest request that was read."""
        self._prompts = PromptMaker(vocab_size=header.vocab_size, block_size=header.block_size)
        self._blocks = 0
        self._drafts: DraftReader | None = None
        self._lengths: deque[int] = deque(maxlen=500)
        self._fitted_at = -math.inf

    @property
    def arms(self) -> tuple[Arm, Arm]:
        return self.production, self.candidate

    @property
    def time(self) -> float:
        return min(arm.clock.time for arm in self.arms)

    def fit(self, reader: LedgerReader, turn: int) -> None:
        """To the speed of the last steps up to a turn, where the last fit is old."""
        if self.time - self._fitted_at < _FIT_SECONDS:
            return
        speed = recorded_speed(reader.turns(max(1, turn - _FIT_TURNS), turn))
        for arm in self.arms:
            arm.runner.speed = speed
        self.step_error, self._fitted_at = speed.median_error, self.time

    def advance(self, reader: LedgerReader, until: float) -> None:
        """Offer what arrived before a time to both, and serve until then."""
        for row in self._arrived(reader, until):
            self._number = row.request
            self._offer(reader, row)
        for arm in self.arms:
            arm.advance(until)

    def _arrived(self, reader: LedgerReader, until: float) -> Iterator[RequestRow]:
        while rows := reader.requests_after(self._number, _AT_ONCE):
            for row in rows:
                if row.arrival / 1e6 >= until:
                    return
                yield row

    def _offer(self, reader: LedgerReader, row: RequestRow) -> None:
        detail, header = request_detail_of(row), self.header
        room = row.max_tokens or header.max_model_len - row.prompt_tokens
        if detail.by_door or detail.bad_token is not None or not row.prompt_tokens or room <= 0:
            return
        end = reader.end(row.request)
        if end is not None and end.reason in WHOLE:
            length = end.output_tokens
            self._lengths.append(length)
            self.recorded[row.request] = Outcome(row.seconds_until(end.first_token), end.e2e / 1e6, length)
        else:
            if end is not None and end.reason == REFUSED:
                self.recorded[row.request] = Outcome(None, None)
            length = int(median(list(self._lengths))) if self._lengths else 1
            self.unknown_lengths += 1
        if self._blocks > MOST_BLOCKS:
            self._blocks = 0
            self._prompts = PromptMaker(vocab_size=header.vocab_size, block_size=header.block_size)
        self._blocks += row.prompt_tokens // header.block_size
        prompt = self._prompts.prompt(row, detail)
        request = offered_again(row, detail, prompt, max(1, min(length, room)), header)
        drafts = self._drafts_of(reader, row, end)
        self.arrivals.append((request.arrival_time, row.request))
        for arm in self.arms:
            arm.offer(request, drafts)

    def _drafts_of(self, reader: LedgerReader, row: RequestRow, end: EndRow | None) -> AnswerDrafts | None:
        if not self.header.max_drafts:
            return None
        if self._drafts is None:
            self._drafts = DraftReader(first=row.request, turn=row.turn)
        self._drafts.read(reader, reader.bounds()[1] if end is None else end.turn)
        return self._drafts.take(row)

    def forget(self, before: float) -> None:
        """The requests that arrived before a time."""
        while self.arrivals and self.arrivals[0][0] < before:
            _, number = self.arrivals.popleft()
            for known in (self.recorded, *(arm.outcomes for arm in self.arms)):
                known.pop(number, None)
